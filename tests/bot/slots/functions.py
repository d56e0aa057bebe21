"""Functions for bots in tests: bots whose processes are the stand-in, and the values that go in and out."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from myrmidon.functions import msgpack
from tests.bot.bots import BotProcess, a_bot, zip_files
from tests.bot.stub import Stub

STAND_IN = Path(__file__).with_name("stand_in.py")


@contextmanager
def a_bot_with_slots(
    stub: Stub, folder: Path, slots: int = 2, *flags: str, changed: Mapping[str, str] | None = None, **more: Any
) -> Iterator[BotProcess]:
    """A bot whose functions are those of stand_in.py; ``changed``: other sources of the bot, by name."""
    files = {**zip_files(stub.url, **(changed or {})), "myrmidon/executor/main.py": STAND_IN.read_bytes()}
    with a_bot(stub.url, folder, "--slots", str(slots), *flags, files=files, **more) as bot:
        yield bot


def a_value(value: Any) -> dict[str, Any]:
    data = msgpack.pack(value)
    return {"type": "any", "payload": b64encode(data).decode(), "size": len(data)}


def call(stub: Stub, name: str, *arguments: Any, **fields: Any) -> str:
    """Submit a function of the stand-in; its run."""
    more: dict[str, Any] = {key: fields.pop(key) for key in ("code", "memory_mb") if key in fields}
    function: dict[str, Any] = {"package_name": "stand_in", "func_name": name, "language": "PYTHON", **more}
    given: dict[str, Any] = {"inputs": [a_value(argument) for argument in arguments], "output_types": [], **fields}
    return stub.submit(function=function, **given)


def run(stub: Stub, name: str, *arguments: Any, **fields: Any) -> dict[str, Any]:
    return stub.result(call(stub, name, *arguments, **fields))


def outputs(report: dict[str, Any]) -> list[Any]:
    assert report["exit_code"] == 0, report
    return [msgpack.unpack(b64decode(output["payload"]["inline"])) for output in report["outputs"]]
