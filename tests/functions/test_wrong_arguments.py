"""Arguments in a form that people often give are refused in words that show the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from myrmidon import Client, task


def one(x: int) -> int:
    return x


CLIENT: Any = Client("http://127.0.0.1:1", "myr_x")
TASK: Any = task
"""Both without their types, which a type checker would hold these tests to."""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: TASK(dimensions="os=Linux")(one), "dimensions is 'os=Linux'; write a dict such as {'os': 'Linux'}"),
        (lambda: TASK(dimensions={"os": None})(one), "dimensions['os'] is None; write a list such as ['Linux']"),
        (lambda: TASK(env="A=1")(one), "env is 'A=1'; write a dict such as {'LANG': 'C.UTF-8'}"),
        (lambda: TASK(env={"A": None})(one), "env['A'] is None; write a text, an empty one to unset the variable"),
        (lambda: TASK(tags="team:build")(one), "tags is 'team:build'; write a list such as ['team:build']"),
        (lambda: TASK(shared="no")(one), "shared is 'no'; write True or False"),
        (lambda: CLIENT.wait("7c07a39dc80000100"), "task_ids is '7c07a39dc80000100'; write a list such as ['7c07"),
        (lambda: CLIENT.task(7), "the id is 7; write it as the server shows it, as a text"),
        (lambda: CLIENT.submit_job("job.json"), "the document is 'job.json'; write a dict such as {'name': 'build',"),
        (
            lambda: CLIENT.submit_job({}, parameters="a=1"),
            "parameters is 'a=1'; write a dict such as {'arch':",
        ),
        (lambda: CLIENT.share(1, localities="10.2.0.7"), "localities is '10.2.0.7'; write a list such as ['10.2.0.7']"),
    ],
)
def test_a_wrong_argument_is_told_with_the_right_form(call: Callable[[], Any], told: str):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(told)
