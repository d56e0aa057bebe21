"""Run one call of a function in this process: ``python -m myrmidon.executor.reproduce FOLDER [--pdb]``.

The folder has ``call.json``, the code and the values of the inputs; the command line has fetched them. The result, or
the traceback from the function on, is printed. With ``--pdb`` the debugger starts where the function has raised.
"""

from __future__ import annotations

import json
import os
import pdb  # noqa: T100 - the option starts it
import sys
import traceback
from types import TracebackType
from typing import Any

from myrmidon.executor.runner import call_target, decoded_inputs
from myrmidon.executor.targets import ImportFailed, Targets

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAILED = 1


def main(argv: list[str]) -> int:
    folder, options = argv[0], argv[1:]
    with open(os.path.join(folder, "call.json"), encoding="utf-8") as file:
        call: dict[str, Any] = json.load(file)
    if call["code"]:
        sys.path.insert(0, call["code"])
    try:
        sys.stdout.write(f"{_result(call)!r}\n")
    except Exception as error:  # noqa: BLE001 - what the function raises is the result
        raised = error.__cause__ or error if isinstance(error, ImportFailed) else error
        shown = _from_user_code(raised.__traceback__)
        sys.stdout.flush()
        traceback.print_exception(type(raised), raised, shown)
        if "--pdb" in options and shown is not None:
            pdb.post_mortem(shown)
        return FAILED
    return 0


def _result(call: dict[str, Any]) -> Any:
    target = Targets(lambda: None).find(call["package"], call["function"], call["signature"])
    return call_target(target, decoded_inputs(target, call["inputs"]))


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
