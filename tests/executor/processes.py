"""An executor as the bot starts it: a real process from the bot zip, spoken to in frames."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any, Self

from myrmidon.executor.stacks import take_stacks
from myrmidon.functions import msgpack
from tests.deadline import HANG_S


class Died(Exception):
    """The process has ended without an answer; the argument is its exit code."""


class Executor:
    """The bot's side of an executor; use as a context manager. ``source`` is the module ``sample`` of its code."""

    def __init__(self, python: str, bot_zip: Path, folder: Path, source: str) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.work = folder / "work"
        self.outputs = folder / "outputs"
        for one in (self.code, self.work, self.outputs):
            one.mkdir(parents=True)
        self.write_module("sample", source)
        self.command = [python, str(bot_zip), "executor"]
        self.next_id = 0
        self.other: list[dict[str, Any]] = []
        """Frames that were no answers, such as progress."""
        self.ends = {"out": 0, "err": 0}
        self.defaults: dict[str, Any] = {}
        """Fields of all runs, beside those of ``begin``."""

    def write_module(self, name: str, source: str) -> None:
        (self.code / f"{name}.py").write_text(textwrap.dedent(source))

    def __enter__(self) -> Self:
        kind = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_STREAM)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, kind)
        self.answers, answers = os.pipe()
        self.stacks = os.open(self.folder / "stacks", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        fds = {"--control-in": theirs.fileno(), "--control-out": answers, "--stacks": self.stacks}
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                [*self.command, *(word for name, fd in fds.items() for word in (name, str(fd))), "--code", self.code],
                pass_fds=list(fds.values()),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.work,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.folder), "PYTHONUNBUFFERED": ""},  # as on a bot
            )
        theirs.close()
        os.close(answers)
        assert self.receive() == {"op": "ready"}
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        try:
            self.process.wait(HANG_S)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.answers)
            os.close(self.stacks)

    def last_stack(self) -> str:
        """What the bot adds to the log of the run with which the process has died."""
        return take_stacks(self.stacks).decode()

    def send(self, frame: dict[str, Any]) -> None:
        body = msgpack.pack(frame)
        self.control.sendall(struct.pack("<I", len(body)) + body)

    def receive(self) -> dict[str, Any]:
        (length,) = struct.unpack("<I", self._read(4))
        frame: dict[str, Any] = msgpack.unpack(self._read(length))
        return frame

    def _read(self, size: int) -> bytes:
        data = b""
        until = time.monotonic() + HANG_S
        while len(data) < size:
            assert select.select([self.answers], [], [], max(until - time.monotonic(), 0))[0], "no answer"
            more = os.read(self.answers, size - len(data))
            if not more:
                raise Died(self.process.wait(HANG_S))
            data += more
        return data

    def begin(self, function: str, *inputs: Any, as_file: bool = False, **more: Any) -> int:
        """Send a run of a function of ``sample``; inputs are plain values, or dicts as they are in a frame."""
        self.next_id += 1
        described = [one if isinstance(one, Raw) else {"data": msgpack.pack(one)} for one in inputs]
        frame = {
            "op": "run", "id": self.next_id, "run": "5cee4880088101", "task_id": "t1", "label": "l1", "job_id": "j1",
            "package": "sample", "function": function, "signature": "", "inputs": [dict(one) for one in described],
            "output_folder": str(self.outputs), "memory_mb": None, "server": "http://127.0.0.1:1", "token": "x",
            "bot_id": "b1",
        }  # fmt: skip
        (self.send_as_file if as_file else self.send)({**frame, **self.defaults, **more})
        return self.next_id

    def send_as_file(self, frame: dict[str, Any]) -> None:
        """Send a frame as the bot sends one that is too large for the channel."""
        path = self.folder / "frame"
        path.write_bytes(msgpack.pack(frame))
        self.send({"op": "frame", "id": frame["id"], "path": str(path)})

    def answer(self) -> dict[str, Any]:
        while True:
            frame = self.receive()
            if frame["op"] in ("done", "error"):
                frame["stdout"], frame["stderr"] = self._log("out", frame), self._log("err", frame)
                return frame
            if frame["op"] != "begin":
                self.other.append(frame)

    def _log(self, name: str, frame: dict[str, Any]) -> str:
        data = (self.folder / name).read_bytes()[self.ends[name] : frame[name]]
        self.ends[name] = frame[name]
        return data.decode()

    def run(self, function: str, *inputs: Any, **more: Any) -> dict[str, Any]:
        """Run a function and wait for its answer, which has the texts that it printed."""
        number = self.begin(function, *inputs, **more)
        answer = self.answer()
        assert answer["id"] == number
        return answer

    def result(self, function: str, *inputs: Any, **more: Any) -> Any:
        """The only output of a function that must succeed."""
        answer = self.run(function, *inputs, **more)
        assert answer["op"] == "done", answer
        (output,) = answer["outputs"]
        return msgpack.unpack(output["data"] if "data" in output else Path(output["path"]).read_bytes())

    def error(self, function: str, *inputs: Any, **more: Any) -> dict[str, Any]:
        """The answer of a function that must fail, with the error's fields beside its own."""
        answer = self.run(function, *inputs, **more)
        assert answer["op"] == "error", answer
        assert set(answer["error"]) - {"args"} == {"type", "message", "traceback", "bases", "place"}
        return {**answer, **answer["error"], "summary": answer["message"]}


class Raw(dict):
    """An input as it is in a frame, with ``data``, ``path`` or ``parts``."""
