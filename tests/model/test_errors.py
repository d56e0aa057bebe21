from __future__ import annotations

import msgspec
import pytest

from myrmidon.model import errors
from myrmidon.model.errors import InvalidRequest, MyrmidonError, NotFound, Problem

CODES = {
    "MyrmidonError": "error",
    "InvalidRequest": "request.invalid",
    "Conflict": "request.conflict",
    "NotFound": "not_found",
    "Unauthorized": "unauthorized",
    "Forbidden": "forbidden",
    "WrongState": "wrong_state",
    "TooLarge": "request.too_large",
    "TooSlow": "request.too_slow",
    "UnknownFile": "unknown_file",
    "UnknownValue": "unknown_value",
    "FileDamaged": "files.damaged",
    "FilesUnavailable": "files.unavailable",
    "Overloaded": "overloaded",
    "QuotaExceeded": "quota",
    "StorageQuotaExceeded": "storage_quota",
    "Stopping": "stopping",
    "BrokenPromise": "broken_promise",
    "IllegalMove": "broken_promise.illegal_move",
    "StoreError": "store",
    "StoreBusy": "store.busy",
    "StoreUnavailable": "store.unavailable",
    "StoreFull": "store.full",
    "StoreRefused": "store.refused",
}


def every_error(root=MyrmidonError):
    return [root, *(e for child in root.__subclasses__() for e in every_error(child))]


def test_codes_never_change():
    assert {e.__name__: e.code for e in every_error() if e.__module__ == errors.__name__} == CODES


SAY_IT_THEMSELVES = ("MyrmidonError", "NotFound", "Conflict", "Forbidden", "WrongState")
"""What to do differs from case to case: tests/architecture/ checks that each message says it."""


@pytest.mark.parametrize("name", CODES)
def test_every_error_says_what_to_do_and_is_in_the_tree(name):
    assert (
        (getattr(errors, name).advice == "")
        if name in SAY_IT_THEMSELVES
        else getattr(errors, name).advice.endswith(".")
    )
    assert name in errors.__doc__
    assert CODES[name] in errors.__doc__


def test_an_error_can_have_another_advice_than_its_class():
    assert errors.Unauthorized("This bot was deleted.", advice="Register it again.").message == (
        "This bot was deleted. Register it again."
    )


def test_an_error_is_one_json_object():
    error = errors.StoreBusy("The database is locked.")
    assert error.as_dict() == {
        "code": "store.busy",
        "message": "The database is locked. Nothing was changed; try again in a moment.",
    }
    assert str(error) == error.message


def test_not_found_names_the_thing():
    error = NotFound("task", "5cee4880088100")
    assert (error.what, error.id) == ("task", "5cee4880088100")
    assert error.message == (
        "There is no task 5cee4880088100. `myrmidon tasks` lists tasks; they are deleted some time after their end."
    )
    assert NotFound("page", "/nothing").message == "There is no page /nothing. `/api/docs` lists the paths of the API."


def test_an_invalid_request_carries_every_problem():
    problems = [Problem("a", "1", "text"), Problem("b", "2", "0..1", "range")]
    shape = InvalidRequest(problems).as_dict()
    assert shape["problems"] == [
        {"path": "a", "value": "1", "allowed": "text", "code": "invalid"},
        {"path": "b", "value": "2", "allowed": "0..1", "code": "range"},
    ]
    assert str(shape["message"]).startswith("a: got 1; allowed: text. And 1 more.")
    assert msgspec.json.decode(msgspec.json.encode(shape)) == shape
