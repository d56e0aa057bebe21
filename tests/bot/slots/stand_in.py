"""A process at the other end of the bot's pipes that does what it is told, faults too that the real one never makes.

It takes the place of myrmidon/executor/main.py in a bot's zip. The package of a function is "stand_in", and its name is
one of those below; arguments are plain MessagePack.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from myrmidon.functions import msgpack


class Ended(Exception):
    """End without an answer."""


class Functions:
    """What can be called: each returns its outputs."""

    def __init__(self, out: int) -> None:
        self.out = out
        self.hoard: list[bytes] = []
        self.count = 0

    def none(self) -> list[Any]:
        return []

    def echo(self, *values: Any) -> list[Any]:
        return list(values)

    def length(self, value: Any) -> list[Any]:
        return [len(value)]

    def shape(self, parts: Any) -> list[Any]:
        return [len(parts), len(parts[0]), parts[1:6], len(parts[-1])]

    def point_to(self, path: str) -> list[Any]:
        outputs = [{"type": "any", "path": path, "size": 2000}]
        send(self.out, {"op": "done", "id": CURRENT["id"], "outputs": outputs, "out": 0, "err": 0})
        time.sleep(60)
        return []

    def calls(self) -> list[Any]:
        """How many runs this process has had, and its pid."""
        return [self.count, os.getpid()]

    def environment(self) -> list[Any]:
        names = ("TMPDIR", "MYRMIDON_BOT_ID", "MYRMIDON_TASK_ID")
        return [os.getcwd(), {name: os.environ.get(name) for name in names}]

    def say(self, text: str, error: str = "") -> list[Any]:
        os.write(1, text.encode())
        os.write(2, error.encode())
        return []

    def say_and_wait(self, text: str, path: str) -> list[Any]:
        self.say(text)
        return self.wait(path)

    def flood(self, size: int) -> list[Any]:
        line = b"x" * 63 + b"\n"
        for _ in range(size // 65536):
            os.write(1, line * 1024)
        return []

    def sleep(self, seconds: float) -> list[Any]:
        time.sleep(seconds)
        return []

    def wait(self, path: str) -> list[Any]:
        """Wait until a file exists."""
        while not os.path.exists(path):
            time.sleep(0.005)
        return []

    def touch_and_wait(self, touched: str, path: str) -> list[Any]:
        with open(touched, "a") as file:
            file.write(f"{os.getpid()}\n")
        return self.wait(path)

    def fail(self, message: str) -> list[Any]:
        raise RuntimeError(message)

    def progress(self, value: float, path: str) -> list[Any]:
        send(self.out, {"op": "progress", "id": CURRENT["id"], "value": value})
        return self.wait(path)

    def exit(self, code: int) -> list[Any]:
        os._exit(code)

    def die(self, number: int) -> list[Any]:
        os.kill(os.getpid(), number)
        time.sleep(60)
        return []

    def ignore_terminate(self, path: str) -> list[Any]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self.wait(path)

    def allocate(self, size: int) -> list[Any]:
        self.hoard.append(b"x" * size)
        time.sleep(60)
        return []

    def keep(self, size: int) -> list[Any]:
        self.hoard.append(b"x" * size)
        return []

    def leave_daemon(self, path: str) -> list[Any]:
        subprocess.Popen([sys.executable, "-c", DAEMON, path], start_new_session=True)
        self.wait(path)
        return []

    def leave_daemon_and_exit(self, path: str) -> list[Any]:
        self.leave_daemon(path)
        os._exit(3)

    def garbage(self) -> list[Any]:
        os.write(self.out, b"\xff" * 100)
        time.sleep(60)
        return []

    def half_a_frame(self) -> list[Any]:
        os.write(self.out, (1000).to_bytes(4, "little") + b"\x81")
        os._exit(0)

    def close_pipe(self) -> list[Any]:
        os.close(self.out)
        time.sleep(60)
        return []

    def wrong_answer(self) -> list[Any]:
        send(self.out, {"op": "done", "id": CURRENT["id"] + 1000, "outputs": [], "out": 0, "err": 0})
        time.sleep(60)
        return []


CURRENT: dict[str, int] = {"id": 0}
DAEMON = """
import os, sys, time
if os.fork() == 0:
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(600)
"""


def send(out: int, message: dict[str, Any]) -> None:
    content = msgpack.pack(message)
    data = len(content).to_bytes(4, "little") + content
    while data:
        data = data[os.write(out, data) :]


def value_of(given: dict[str, Any]) -> Any:
    if "parts" in given:
        return [value_of(part) for part in given["parts"]]
    if "path" in given:
        with open(given["path"], "rb") as file:
            return msgpack.unpack(file.read())
    return msgpack.unpack(given["data"])


def answer(functions: Functions, message: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    CURRENT["id"] = message["id"]
    functions.count += 1
    reply: dict[str, Any] = {"op": "done", "id": message["id"], "delegated": False}
    try:
        results = getattr(functions, message["function"])(*map(value_of, message["inputs"]))
        reply["outputs"] = [output(message, position, value) for position, value in enumerate(results)]
    except RuntimeError as error:
        failure = {"type": "builtins.RuntimeError", "message": str(error), "traceback": "here", "bases": []}
        reply.update(op="error", kind="exception", error=failure)
    reply.update(out=os.fstat(1).st_size, err=os.fstat(2).st_size, seconds=time.monotonic() - begun)
    return reply


def output(message: dict[str, Any], position: int, value: Any) -> dict[str, Any]:
    data = msgpack.pack(value)
    if len(data) <= 1024:
        return {"type": "any", "data": data}
    path = os.path.join(message["output_folder"], f"{message['id']}-{position}")
    with open(path, "wb") as file:
        file.write(data)
    return {"type": "any", "path": path, "size": len(data)}


def main(argv: list[str]) -> int:
    options = dict(zip(argv[::2], argv[1::2]))  # noqa: B905 - for Python 3.8
    reader, out = int(options["--control-in"]), int(options["--control-out"])
    os.set_inheritable(reader, False)
    os.set_inheritable(out, False)
    send(out, {"op": "ready"})
    functions = Functions(out)
    while True:
        data = os.read(reader, 1 << 18)
        if not data:
            return 0
        message = msgpack.unpack(data[4:])
        if message["op"] == "frame":
            with open(message["path"], "rb") as file:
                message = msgpack.unpack(file.read())
        send(out, {"op": "begin", "id": message["id"]})
        send(out, answer(functions, message))
