"""@task: what it accepts, and that outside of a job the function is the plain function."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from myrmidon import Int8, TaskFunction, task
from myrmidon.functions.durations import seconds
from myrmidon.functions.task_function import task_function_of
from myrmidon.functions.task_options import CACHE_VARIABLE, TaskOptions
from tests.functions import tasks


def test_outside_of_a_job_a_task_is_the_plain_function():
    assert tasks.count("a", top=3) == {"a": 3}
    assert tasks.merge([{"a": 1}, {"a": 2}]) == {"a": 3}
    assert tasks.count.__name__ == "count"
    assert list(inspect.signature(tasks.count).parameters) == ["text", "top"]
    assert asyncio.run(tasks.later(1)) == 2


def test_static_methods_work_with_the_decorators_in_either_order():
    assert (tasks.Group.inner(2), tasks.Group.outer(2)) == (4, 6)
    assert tasks.Group().inner(2) == 4
    assert isinstance(tasks.Group.outer, TaskFunction)
    assert tasks.Group.inner.signature.text == "Group.inner(x:int64)->int64"


def test_a_partial_can_be_called_and_made_a_task():
    top = functools.partial(tasks.count, top=1)
    assert top("a") == {"a": 1}
    made = task(top)
    assert made("b") == {"b": 1}
    assert made.options(label="x")("b") == {"b": 1}
    assert list(inspect.signature(task(functools.partial(tasks.count, "t"))).parameters) == ["top"]
    found, args, kwargs = task_function_of(functools.partial(made, "c"))
    assert (found, args, kwargs) == (made, ("c",), {"top": 1})


def test_an_annotation_may_name_a_class_that_is_defined_later():
    assert tasks.forward.signature.text == "forward(x:tests.functions.tasks.Defined)->int64"


def _local() -> TaskFunction:
    def inside(x: int) -> int:
        return x

    return task(inside)


def _closure() -> TaskFunction:
    y = 1

    def inside(x: int) -> int:
        return x + y

    return task(inside)


class Counter:
    def method(self, x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> int:
        return x


def generator(x: int) -> Iterator[int]:
    yield x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


def stars(*xs: int) -> int:
    return len(xs)


def keywords(**xs: int) -> int:
    return len(xs)


def untyped(x) -> int:
    return x


def no_result(x: int):
    return x


def file(x: Path) -> int:
    return len(str(x))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: task(lambda x: x), "a lambda has no name"),
        (_local, "defined inside a function"),
        (_closure, r"uses variables of the function around it \(y\)"),
        (lambda: task(Counter.method), "is a method"),
        (lambda: task(Counter().method), "is a method"),
        (lambda: task(Counter.__dict__["of_class"]), "cannot be a method"),
        (lambda: task(generator), "generator"),
        (lambda: task(async_generator), "generator"),
        (lambda: task(stars), r"has \*xs"),
        (lambda: task(keywords), r"has \*\*xs"),
        (lambda: task(untyped), "x of untyped has no annotation"),
        (lambda: task(no_result), "no return annotation"),
        (lambda: task(file), "files are not values"),
        (
            lambda: task(3),  # type: ignore[call-overload]
            "not a function",
        ),
        (lambda: task(after=[]), "after= belongs to a call"),
        (
            lambda: task(colour="red"),  # type: ignore[call-overload]
            "unknown option 'colour'",
        ),
    ],
)
def test_what_a_bot_could_not_call_is_refused_at_decoration(make, problem):
    with pytest.raises(TypeError, match=problem):
        make()


def test_options_override_and_are_checked():
    made = tasks.count.options(dimensions={"gpu": ["1", "2"]}, reruns=0, timeout=1.5, memory_mb=256, env={"A": "b"})
    properties = made.task_options.properties(function=True)
    assert properties["dimensions"].items() >= {"pool": ["default"], "os": ["Linux"], "gpu": ["1", "2"]}.items()
    assert (properties["execution_timeout_s"], properties["env"]) == (1.5, {"A": "b"})
    assert "reruns" not in made.task_options.request()
    assert tasks.count.task_options.reruns == 2
    for wrong in (
        {"reruns": -1},
        {"timeout": "soon"},
        {"timeout": 0},
        {"label": ""},
        {"memory_mb": "1"},
        {"cache": "x"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tasks.count.options(**wrong)


def test_the_version_of_python_is_a_dimension_unless_it_is_removed():
    python = TaskOptions().properties(function=True)["dimensions"]["python"]
    assert python[0].count(".") == 1
    assert "python" not in TaskOptions().changed(dimensions={"python": []}).properties(function=True)["dimensions"]
    assert "python" not in TaskOptions().properties(function=False)["dimensions"]


def test_a_soft_timeout_allows_a_second_instance():
    request = TaskOptions().changed(soft_timeout="30s").request()
    assert (request["soft_timeout_s"], request["max_instances"]) == (30, 2)
    assert TaskOptions().changed(soft_timeout=1, max_instances=5).request()["max_instances"] == 5


def test_a_cached_result_is_not_reused_after_its_time(monkeypatch: pytest.MonkeyPatch):
    def key(now: float, cache: object) -> dict:
        monkeypatch.setattr("time.time", lambda: now)
        return TaskOptions().changed(cache=cache).properties(function=True)

    assert key(7200, "1h")["env"] == key(10_799, "1h")["env"] == {CACHE_VARIABLE: "2"}
    assert key(10_800, "1h")["env"] == {CACHE_VARIABLE: "3"}
    for forever in (True, "7d", dt.timedelta(days=30)):
        assert key(0, forever)["idempotent"]
        assert "env" not in key(0, forever)
    assert "idempotent" not in key(0, False)
    assert "api" not in key(0, True), "a cached function cannot change its job: it may not run"


@pytest.mark.parametrize(
    ("given", "expected"),
    [(5, 5), (0.25, 0.25), ("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("1.5d", 129_600), ("2w", 1_209_600)],
)
def test_durations(given, expected):
    assert seconds(given) == expected


@pytest.mark.parametrize("given", ["", "5", "m", "5 m", "-5s", 0, -1, float("inf"), float("nan"), True, None])
def test_what_is_no_duration(given):
    with pytest.raises(ValueError, match="timeout is"):
        seconds(given, "timeout")


def test_integers_of_fewer_bits_are_exported():
    assert Int8(5) == 5
