"""The outputs of a command for other tasks: files $MYRMIDON_OUTPUT_DIR/0, 1, ... in JSON, by the types of the task.

A command that succeeds must have written all of them. Of one that fails, those that it has written are kept: a report
about failed tests is needed when tests fail. The others have an empty payload.

functions/json_values.py says how each type is written.
"""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256
from typing import Any, Callable, Sequence

from myrmidon.bot.protocol import Output, Payload
from myrmidon.functions.json_values import JsonProblem, encode_json
from myrmidon.functions.values import INLINE_BYTES, MAX_BYTES, too_large

Store = Callable[[str, bytes], None]
"""Stores a file by its digest. Raises TransferFailed."""


class BadOutput(Exception):
    """The command has not written an output as it should; the message says what is wrong."""


def read_outputs(folder: str, types: Sequence[str], store: Store) -> tuple[list[Output], str]:
    """(the outputs in a folder as reported, what is wrong with the first bad one or empty). Raises TransferFailed."""
    outputs = []
    problems = []
    for position, kind in enumerate(types):
        payload = Payload()
        try:
            payload = _payload(_encoded(folder, position, kind), store)
        except BadOutput as problem:
            problems.append(str(problem))
        outputs.append(Output(kind, payload))
    return outputs, problems[0] if problems else ""


def _encoded(folder: str, position: int, kind: str) -> bytes:
    try:
        data = encode_json(_read(folder, position), kind, f"output {position}")
    except JsonProblem as problem:
        raise BadOutput(str(problem)) from None
    if len(data) > MAX_BYTES:
        raise BadOutput(too_large(f"output {position}", len(data)))
    return data


def _payload(data: bytes, store: Store) -> Payload:
    if len(data) <= INLINE_BYTES:
        return Payload(data)
    digest = sha256(data).hexdigest()
    store(digest, data)
    return Payload(digest=digest, size=len(data))


def _read(folder: str, position: int) -> Any:
    """The JSON of one output. Links are not followed: a command could make the bot read any file."""
    try:
        handle = os.open(os.path.join(folder, str(position)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadOutput(f"the command has not written output {position}: $MYRMIDON_OUTPUT_DIR/{position}") from None
    except OSError as error:
        raise BadOutput(f"output {position} cannot be read: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise BadOutput(f"output {position} is not a file")
        text = file.read(2 * MAX_BYTES + 1)
    if len(text) > 2 * MAX_BYTES:
        raise BadOutput(f"output {position} is too large; at most 64 MiB")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOutput(f"output {position} is not JSON: {error}") from error
