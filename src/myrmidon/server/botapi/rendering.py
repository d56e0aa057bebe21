"""Puts outputs of other tasks into a command that a bot has claimed: its words, variables, payload and stdin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import structs

from myrmidon.model.errors import FileDamaged, FilesUnavailable
from myrmidon.model.task_request import Properties
from myrmidon.model.validation import is_clean
from myrmidon.model.value import Value
from myrmidon.scheduler.claim import Claimed
from myrmidon.server.file_store import FileStore

MAX_WORD_BYTES: Final = 128 << 10
"""The largest value in an argument or a variable. No operating system passes longer ones."""
MAX_FILE_BYTES: Final = 16 << 20
"""How large the values in the payload and the stdin of one command may be together."""


class CannotRender(Exception):
    """A value cannot be put into the command; the message says why."""


async def read_files(store: FileStore, claimed: Iterable[Claimed]) -> dict[str, bytes]:
    """The contents of the files that rendering these runs needs, by digest; those that cannot be read are left out."""
    values = [value for run in claimed if run.work.func_name is None for value in run.inputs]
    found: dict[str, bytes] = {}
    for digest in {v.digest for v in values if v.digest is not None and (v.size or 0) <= MAX_FILE_BYTES}:
        with suppress(FileDamaged, FilesUnavailable):
            found[digest] = await store.read_whole(digest)
    return found


def render(
    properties: Properties, inputs: Sequence[Value], files: Mapping[str, bytes]
) -> tuple[Properties, bytes | None]:
    """The properties with values in place of references, and the stdin if that is one.

    A text is put there as it is, bytes too if they are the stdin, and anything else as JSON.

    An output that a failed parent has not written is null: only a task that waits for any end of its parents is claimed
    without it.
    """
    _check_sizes(properties, inputs)
    decoded = {number: _decoded(inputs[number], files) for number in {ref.input for ref in properties.output_refs}}
    command, env = list(properties.command), dict(properties.env)
    payload: Any = msgspec.json.decode(properties.payload) if properties.payload else None
    stdin = None
    for ref in properties.output_refs:
        part, *rest = ref.path
        value = decoded[ref.input]
        if part == "command":
            command[int(rest[0])] = _as_text(value)
        elif part == "env":
            env[str(rest[0])] = _as_text(value)
        elif part == "stdin":
            stdin = _as_bytes(value)
        else:
            payload = _placed(payload, rest, value)
    text = _json(payload) if properties.payload else ""
    return structs.replace(properties, command=command, env=env, payload=text, output_refs=[]), stdin


def _check_sizes(properties: Properties, inputs: Sequence[Value]) -> None:
    total = 0
    for ref in properties.output_refs:
        size = inputs[ref.input].size or 0
        if ref.path[0] in ("payload", "stdin"):
            total += size
        elif size > MAX_WORD_BYTES:
            raise CannotRender(
                f"an output in an argument or a variable has {size} bytes; at most {MAX_WORD_BYTES} are possible,"
                " so put it into the payload or the stdin"
            )
    if total > MAX_FILE_BYTES:
        raise CannotRender(
            f"the outputs in the payload and the stdin have {total} bytes; at most {MAX_FILE_BYTES} are possible"
        )


def _decoded(value: Value, files: Mapping[str, bytes]) -> object:
    if value.size is None:
        return None
    data = value.payload if value.digest is None else files.get(value.digest)
    if data is None:
        raise CannotRender("the file of an output that the command needs cannot be read")
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotRender(f"an output that the command needs is no MessagePack: {error}") from None


def _as_text(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    if not is_clean(text):
        raise CannotRender("an output that the command needs has a character that no argument can have")
    return text


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else (value if isinstance(value, str) else _json(value)).encode()


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CannotRender(f"an output that the command needs cannot be written as JSON: {error}") from None


def _placed(tree: Any, path: Sequence[str | int], value: object) -> Any:
    """The tree with the value at a path."""
    if not path:
        return value
    at = tree
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return tree
