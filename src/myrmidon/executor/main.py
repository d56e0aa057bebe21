"""The process that runs functions: `python bot.zip executor --control-in FD --control-out FD --stacks FD --code PATH`.

The bot starts it. The code is an argument and not a frame: the bot takes frames back that the process has not read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from myrmidon.executor.control import Closed, Control
from myrmidon.executor.runner import Runner
from myrmidon.executor.surroundings import Folder, Streams
from myrmidon.functions import msgpack
from myrmidon.functions.context import provide_context


def main(argv: list[str]) -> int:
    """Serve the bot until it closes the channel."""
    options = dict(zip(argv[::2], argv[1::2]))
    fds = [int(options["--control-in"]), int(options["--control-out"])]
    stacks = int(options["--stacks"])
    for fd in (*fds, stacks):
        os.set_inheritable(fd, False)
    sys.argv = ["myrmidon-executor"]
    streams = Streams(stacks)
    with contextlib.suppress(Closed, BrokenPipeError):
        control = Control(*fds)
        runner = Runner(streams, Folder(os.getcwd()), control.write)
        runner.use_code(options["--code"])
        provide_context(runner.context)
        serve(control, runner)
    streams.finish()
    if threading.active_count() > 1:
        os._exit(0)  # does not wait for threads that functions have left behind
    return 0


def serve(control: Control, runner: Runner) -> None:
    """Begin and answer every run in order. An answer and the beginning of the next run are written together."""
    control.write({"op": "ready"})
    frame = control.read()
    control.write(_begin(frame))
    while True:
        answer = runner.run(_content(frame))
        following = control.read_now()
        if following is None:
            control.write(answer)
            following = control.read()
            control.write(_begin(following))
        else:
            control.write(answer, _begin(following))
        frame = following


def _begin(frame: dict[str, Any]) -> dict[str, Any]:
    return {"op": "begin", "id": frame["id"]}


def _content(frame: dict[str, Any]) -> dict[str, Any]:
    """The run of a frame; one that is too large for the channel is in a file."""
    if frame["op"] == "run":
        return frame
    with open(frame["path"], "rb") as file:
        return msgpack.unpack(file.read())  # type: ignore[no-any-return]
