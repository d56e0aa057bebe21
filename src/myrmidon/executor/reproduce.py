"""Run one call of a function in this process: ``python -m myrmidon.executor.reproduce FOLDER [--pdb]``.

The folder has ``call.json``, the code and the values of the inputs; the command line has fetched them. The result is
printed, or the error as a bot reports it, with the traceback of a Python function from its first line on. With
``--pdb`` the debugger of Python starts where the function has raised. If the function does not end this process, the
file ``ended`` is in the folder afterwards.
"""

from __future__ import annotations

import json
import os
import pdb  # noqa: T100 - the option starts it
import sys
import traceback
from types import TracebackType
from typing import Any

from myrmidon.executor.failures import ExecutorError, LibraryFailed, describe, sentence
from myrmidon.executor.native_functions import NativeFunctions
from myrmidon.executor.runner import PYTHON, call_target, decoded_inputs
from myrmidon.executor.targets import ImportFailed, Targets
from myrmidon.functions import msgpack
from myrmidon.functions.native_errors import LibraryProblem, NativeTypeError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAILED = 1
ENDED = "ended"


def main(argv: list[str]) -> int:
    folder, options = argv[0], argv[1:]
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as file:
        call: dict[str, Any] = json.load(file)
    _enter(folder, call["env"])
    code = _run_python(call, "--pdb" in options) if call["language"] == PYTHON else _run_native(call)
    with open(os.path.join(folder, ENDED), "w", encoding="utf-8"):
        return code


def _enter(folder: str, env: dict[str, str]) -> None:
    """Change to an empty folder, and set the variables of the task; an empty one is removed."""
    work = os.path.join(folder, "work")
    os.makedirs(work, exist_ok=True)
    os.chdir(work)
    for name, value in env.items():
        os.environ[name] = value
        if not value:
            del os.environ[name]


def _run_python(call: dict[str, Any], debug: bool) -> int:
    if call["code"]:
        sys.path.insert(0, call["code"])
    try:
        target = Targets(lambda: None).find(call["package"], call["function"], call["signature"])
        sys.stdout.write(f"{call_target(target, decoded_inputs(target, call['inputs']))!r}\n")
    except Exception as error:  # noqa: BLE001 - what the function raises is the result
        raised = error.__cause__ or error if isinstance(error, ImportFailed) else error
        shown = _from_user_code(raised.__traceback__)
        sys.stdout.flush()
        traceback.print_exception(type(raised), raised, shown)
        if debug and shown is not None:
            pdb.post_mortem(shown)
        return FAILED
    return 0


def _run_native(call: dict[str, Any]) -> int:
    """Without the declaration: its classes are in a program of Python that is not known here."""
    try:
        outputs = [msgpack.unpack(data) for _, data in NativeFunctions().run(call, call["code"])]
    except (ExecutorError, LibraryProblem, NativeTypeError) as error:  # their messages say everything
        sys.stderr.write(f"{error}\n")
        return FAILED
    except (LibraryFailed, MemoryError) as error:
        sys.stderr.write(f"{sentence(describe(error))}\n")
        return FAILED
    result = outputs[0] if len(outputs) == 1 else tuple(outputs) or None
    sys.stdout.write(f"{result!r}\n")
    return 0


def _from_user_code(begin: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not of this program; all of it if there is none."""
    found = begin
    while found is not None:
        name = os.path.abspath(found.tb_frame.f_code.co_filename)
        if not name.startswith((_OURS + os.sep, "<frozen")) and "importlib" not in name:
            return found
        found = found.tb_next
    return begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
