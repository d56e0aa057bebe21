"""What a command finds around it besides its own folder, in the forms that its authors know from Swarming.

    context.json           LUCI_CONTEXT: the task's id, the bot's dimensions, the deadline; private
    work/context.json      the same with the secret bytes, for a task that has some; gone afterwards
    work/out               ${ISOLATED_OUTDIR}, for a task that asks for it; gone afterwards
    work/bot_file.json     ${SWARMING_BOT_FILE}, for a task or a hook that asks for it; gone afterwards

Nearly every task wants none of it but must find its context. So that file stays open, and each task costs one write
into it: the text is filled up with spaces to a length that does not change, which JSON allows.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from myrmidon.bot.system import filesystem, platforms

_STEP = 512


class Surroundings:
    """Made for one command after the other. What lies in ``work`` goes with all else that a command leaves there."""

    def __init__(self, folder: str, work: str, server: str = "") -> None:
        self.folder = os.open(folder, os.O_RDONLY)
        self.context = os.path.join(folder, "context.json")
        self.secret_context = os.path.join(work, "context.json")
        self.outdir = os.path.join(work, "out")
        self.bot_file = os.path.join(work, "bot_file.json")
        self.server = json.dumps(server)
        self.dimensions = "[]"
        self.file = -1
        self.size = 0
        self.trace = (0, 0, 0, 0, 0)

    def know(self, dimensions: dict[str, list[str]]) -> None:
        """The dimensions of the bot from now on; shown as Swarming shows them."""
        pairs = [f"{key}:{value}" for key, values in sorted(dimensions.items()) for value in values]
        self.dimensions = json.dumps(pairs)

    # ---------------------------------------------------------------- the context

    def write_context(self, task: dict[str, Any]) -> str:
        """The path of the context of this task, written. Raises OSError."""
        secret = task.get("secret_bytes")
        if secret is not None:
            text = self._text(task, f'"secret_bytes":{json.dumps(b64encode(b64decode(secret)).decode())},')
            self._make_file(self.secret_context, text)
            return self.secret_context
        text = self._text(task)
        if len(text) > self.size or not self._is_ours():
            self._open(-(-(len(text) + _STEP) // _STEP) * _STEP)
        os.pwrite(self.file, text.ljust(self.size), 0)
        return self.context

    def _text(self, task: dict[str, Any], secret: str = "") -> bytes:
        run = task["run"]
        name = task.get("task_id") or run[:-2] + "00"
        realm = task.get("realm") or task.get("resource_group")
        more = f',"realm":{{"name":{_quoted(realm)}}}' if realm else ""
        until, grace = time.time() + task["execution_timeout_s"], task["grace_period_s"]
        return (
            f'{{"swarming":{{{secret}"task":{{"server":{self.server},"task_id":"{name}","bot_dimensions":'
            f'{self.dimensions}}}}},"deadline":{{"soft_deadline":{until:.3f},"grace_period":{grace}}}{more}}}'
        ).encode()

    def _is_ours(self) -> bool:
        """No command has removed, replaced, lengthened or closed the file. Asked from its folder: half the price."""
        try:
            found = os.stat("context.json", dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        return _trace(found) == self.trace

    def _open(self, size: int) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        filesystem.remove_file(self.context)
        self.file = os.open(self.context, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.pwrite(self.file, b" " * size, 0)
        self.size, self.trace = size, _trace(os.fstat(self.file))

    # ---------------------------------------------------------------- what is put in

    def fill_in(self, task: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Command and variables with ${...} replaced by what it means here; makes what they ask for."""
        argv, env = task["command"], task.get("env") or {}
        asked = "".join((*argv, *env.values()))
        places = {"EXECUTABLE_SUFFIX": ".exe" if platforms.NAME == "windows" else ""}
        if "${ISOLATED_OUTDIR}" in asked:
            os.mkdir(self.outdir, 0o700)
            places["ISOLATED_OUTDIR"] = self.outdir
        if "${SWARMING_BOT_FILE}" in asked:
            places["SWARMING_BOT_FILE"] = self.need_bot_file()
        own = {**places, "SWARMING_TASK_ID": task["run"]}
        filled = {key: replaced(value, places) for key, value in env.items()}
        return [replaced(word, own) for word in argv], filled

    def need_bot_file(self) -> str:
        """A file through which a hook may tell tasks something of the bot; an empty object until one has."""
        if not os.path.lexists(self.bot_file):
            self._make_file(self.bot_file, b"{}")
        return self.bot_file

    def _make_file(self, path: str, content: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)


def _trace(found: os.stat_result) -> tuple[int, int, int, int, int]:
    return (found.st_ino, found.st_size, found.st_mode, found.st_uid, found.st_nlink)


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json.dumps(text)


def last_begun(folder: str) -> list[str]:
    """The tasks whose contexts an earlier process has left in the bot's folder: one of them it had begun last."""
    found = []
    for name in ("context.json", os.path.join("work", "context.json")):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, "rb") as file:
            found.append(str(json.loads(file.read(1 << 20))["swarming"]["task"]["task_id"]))
    return found


def asks(words: Iterable[str]) -> bool:
    """Whether there is anything to be filled in. Asked of every command: a loop, because it is the quickest way."""
    for word in words:  # noqa: SIM110
        if "${" in word:
            return True
    return False


def replaced(text: str, places: dict[str, str], separator: str = os.sep) -> str:
    """A text with its ${...}. Where a path was put in, slashes become what this system separates paths with."""
    if "${" not in text:
        return text
    is_path = False
    for name, value in places.items():
        mark = f"${{{name}}}"
        if mark in text:
            text = text.replace(mark, value)
            is_path = is_path or name in ("ISOLATED_OUTDIR", "SWARMING_BOT_FILE")
    return text.replace("/", separator) if is_path and separator != "/" else text
