"""Signatures: what is taken from a function, what is refused, and how calls are bound."""

from __future__ import annotations

import functools

import pytest

from myrmidon.functions.signature import REQUIRED, signature_of
from myrmidon.functions.types import TypeProblem
from tests.functions import samples


def count(text: str, top: int = 10) -> dict[str, int]:
    return {}


def nothing() -> None:
    pass


def two(a: int, /, b: str, *, c: float | None = None) -> tuple[int, str]:
    return a, f"{b}{c}"


async def later(point: samples.Point) -> list[samples.Color]:
    return []


class Holder:
    @staticmethod
    def static(a: int) -> int:
        return a


def test_the_text_names_parameters_and_types():
    assert signature_of(count).text == "count(text:string,top:int64)->Map<string,int64>"
    assert signature_of(nothing).text == "nothing()->()"
    assert signature_of(two).text == "two(a:int64,b:string,c:Optional<double>)->(int64,string)"
    here = samples.__name__
    assert signature_of(later).text == f"later(point:{here}.Point)->List<{here}.Color>"
    assert signature_of(Holder.static).text == "Holder.static(a:int64)->int64"
    assert signature_of(Holder.__dict__["static"]).text == "Holder.static(a:int64)->int64"


def test_parameters_have_annotations_and_defaults():
    text, top = signature_of(count).parameters
    assert (text.name, text.annotation, text.type, text.default) == ("text", str, "string", REQUIRED)
    assert (top.name, top.annotation, top.type, top.default) == ("top", int, "int64", 10)
    assert signature_of(count).outputs == [dict[str, int]]
    assert signature_of(two).output_types == ["int64", "string"]


def test_calls_are_bound_with_the_defaults_of_the_submitter():
    assert signature_of(count).bind(("x",), {}) == ["x", 10]
    assert signature_of(count).bind((), {"top": 3, "text": "y"}) == ["y", 3]
    assert signature_of(two).bind((1, "b"), {"c": 2.0}) == [1, "b", 2.0]


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", 1, 2), {}), (("a",), {"other": 1}), (("a",), {"text": 1})]
)
def test_a_wrong_call_raises_as_a_call_of_python_does(args, kwargs):
    with pytest.raises(TypeError, match=r"^count\(\) "):
        signature_of(count).bind(args, kwargs)


def test_a_bound_call_gives_keywords_as_keywords():
    signature = signature_of(two)
    assert signature.call(two, signature.bind((1, "b"), {"c": 2.0})) == (1, "b2.0")


def test_a_partial_has_the_parameters_that_are_left():
    bound = functools.partial(count, top=3)
    signature = signature_of(bound)
    assert signature.text == "count(text:string,top:int64)->Map<string,int64>"
    assert signature.bind(("x",), {}) == ["x", 3]
    assert signature_of(functools.partial(count, "x")).text == "count(top:int64)->Map<string,int64>"
    assert signature.call(bound, signature.bind(("x",), {"top": 1})) == {}


def test_a_decorated_function_has_the_signature_of_what_it_wraps():
    @functools.wraps(count)
    def wrapper(*args: object, **kwargs: object) -> object:
        return count(*args, **kwargs)  # type: ignore[arg-type]

    assert signature_of(wrapper).text == signature_of(count).text


def stars(*values: int) -> int:
    return 0


def double_stars(**values: int) -> int:
    return 0


def no_annotation(a) -> int:
    return 0


def no_return(a: int):
    return 0


def generator(a: int) -> list[int]:  # type: ignore[misc]
    yield a


async def async_generator(a: int) -> list[int]:  # type: ignore[misc]
    yield a


def unknown(a: Missing) -> int:  # type: ignore[name-defined] # noqa: F821
    return 0


def of_path(where: samples.HasPath) -> int:
    return 0


def of_init_var(where: samples.HasInitVar) -> int:
    return 0


def gives_path() -> samples.HasPath:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (stars, r"\*values"), (double_stars, r"\*\*values"), (no_annotation, "parameter a of no_annotation"),
        (no_return, "no return annotation"), (generator, "is a generator"), (async_generator, "is a generator"),
        (unknown, "cannot be resolved"), (of_path, "parameter where of of_path.*files are not values"),
        (of_init_var, "InitVar seed"), (gives_path, "the result of gives_path.*files are not values"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_refused_with_the_reason(function, reason):
    with pytest.raises(TypeProblem, match=reason):
        signature_of(function)
