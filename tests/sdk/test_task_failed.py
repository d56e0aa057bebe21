"""TaskFailed: also of the original class where this program has it, with everything that is known."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from myrmidon import TaskFailed
from myrmidon.sdk.client import Client
from myrmidon.sdk.task_failed import task_failed
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.values import TaskOutcome


class Refused(Exception):
    def __init__(self, code: int, *, hint: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.hint = hint


class Server:
    """Answers what a failure asks for when that is read."""

    def log_tail(self, task_id: str) -> bytes:
        return f"log of {task_id} \xff".encode("latin-1")

    def task(self, task_id: str) -> SimpleNamespace:
        return SimpleNamespace(runs=[SimpleNamespace(evidence={"message": "killed by signal 9"})] if task_id else [])


def failed(error: dict[str, Any] | None, **fields: Any) -> TaskFailed:
    given: dict[str, Any] = {
        "task_id": "t1", "state": "FAILED", "reason": "exit_code", "bot_id": "b1", "run": "r1", "exit_code": 1,
        "outputs": [], "error": None if error is None else FunctionError(**error), **fields,
    }  # fmt: skip
    return task_failed(TaskOutcome(**given), "label", cast("Client", Server()))


@pytest.mark.parametrize(
    ("name", "args", "kind"),
    [
        ("builtins.ValueError", ["x"], ValueError),
        ("builtins.KeyError", ["x"], KeyError),
        ("builtins.FileNotFoundError", [2, "No such file"], FileNotFoundError),
        ("builtins.UnicodeDecodeError", ["utf-8", "no bytes", 0, 1, "bad"], UnicodeDecodeError),
        ("builtins.MemoryError", [], MemoryError),
        ("json.decoder.JSONDecodeError", ["x"], ValueError),
        ("subprocess.CalledProcessError", [1, "ls"], OSError.__mro__[1]),
        (f"{__name__}.Refused", [7], Refused),
    ],
)
def test_it_is_of_the_original_class(name: str, args: list[Any], kind: type[Exception]):
    failure = failed({"type": name, "message": "m", "args": args, "bases": ["builtins.ValueError"]})
    assert isinstance(failure, TaskFailed)
    assert isinstance(failure, kind)
    assert failure.args == tuple(args)
    assert str(failure).startswith("label failed on bot b1: ")


def test_attributes_of_the_original_are_set_by_its_own_init():
    failure = failed({"type": f"{__name__}.Refused", "args": [7]})
    assert isinstance(failure, Refused)
    assert (failure.code, failure.hint) == (7, "")


def test_the_nearest_base_that_is_known_is_used():
    bases = ["nowhere.Base", "builtins.LookupError", "builtins.Exception"]
    failure = failed({"type": "nowhere.Special", "message": "m", "bases": bases})
    assert isinstance(failure, LookupError)
    assert failure.error_type == "nowhere.Special"


def test_no_module_is_imported_because_a_bot_names_it():
    failure = failed({"type": "tests.sdk.scripted_elsewhere.Error", "message": "m"})
    assert type(failure) is TaskFailed
    assert "tests.sdk.scripted_elsewhere" not in sys.modules


@pytest.mark.parametrize("name", ["builtins.KeyboardInterrupt", "builtins.SystemExit", "builtins.int", "", "x", "..."])
def test_what_is_no_exception_of_programs_is_not_taken_over(name: str):
    assert type(failed({"type": name, "message": "m", "bases": ["builtins.BaseException"]})) is TaskFailed


def test_without_an_exception_the_bots_own_words_are_shown():
    failure = failed(None, exit_code=-9)
    assert str(failure) == "label failed on bot b1: killed by signal 9"
    assert failure.remote_traceback == ""
    assert (
        failed(None, task_id="", state="EXPIRED", reason="no_bot", bot_id=None, exit_code=None).what
        == "EXPIRED (no_bot)"
    )


def test_the_log_is_read_when_it_is_asked_for_and_need_not_be_text():
    assert failed(None).log_tail == "log of t1 �"


def test_it_can_be_copied_to_another_process():
    failure = failed({"type": "builtins.KeyError", "message": "m", "args": ["x"], "traceback": "T"})
    copy = pickle.loads(pickle.dumps(failure))
    assert isinstance(copy, KeyError)
    assert isinstance(copy, TaskFailed)
    assert (copy.label, copy.bot, copy.remote_traceback, copy.log_tail) == ("label", "b1", "T", "")
