"""What callers are told about bodies and queries that cannot be decoded."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from myrmidon.model.errors import InvalidRequest
from myrmidon.server.asgi.decoding import _problem, query_decoder


class Item(Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(le=64)] = 0


class Fields(Struct, forbid_unknown_fields=True):
    kind: Literal["task", "job"] = "task"
    wait_s: int = 0
    items: list[Item] = []


class Required(Struct):
    name: str


def problem(kind: type[Struct], fields: dict[str, list[str]]) -> str:
    with pytest.raises(InvalidRequest) as error:
        query_decoder(kind)(fields)
    [found] = error.value.problems
    return str(found)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"kind": ["tusk"]}, "kind: got 'tusk'; allowed: one of the values that /api/docs lists"),
        ({"wait_s": ["soon"]}, "wait_s: got a text; allowed: `int`"),
        ({"wait": ["1"]}, "wait: got an unknown field; allowed: the fields that /api/docs lists"),
    ],
)
def test_a_problem_says_what_was_given_and_what_is_allowed(fields, told):
    assert problem(Fields, fields) == told


def test_a_missing_field_is_named():
    assert problem(Required, {}) == "name: got nothing; allowed: a value: the field is required"


def test_a_limit_is_named_with_its_path():
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert({"items": [{"size": 65}]}, Fields)
    assert str(_problem(str(error.value), "body")) == "items[0].size: got another value; allowed: `int` <= 64"
