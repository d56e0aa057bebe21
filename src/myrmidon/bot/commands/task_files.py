"""Files and placeholders that commands get from the bot, compatible with Swarming.

    context/context.json   LUCI_CONTEXT: the task's id, the bot's dimensions, the deadline; private
    work/context.json      the same with the secret bytes, if the task has some; removed after the run
    work/bot_file.json     ${SWARMING_BOT_FILE}, if the task or a hook uses it; removed after the run
    work/payload.json      MYRMIDON_PAYLOAD: the payload of the request, if it has one; removed after the run
    work/token             MYRMIDON_TOKEN_FILE: a token for its own job, if the task asks for one; removed after the run
    work/bot.zip           MYRMIDON_BOT_ZIP: a copy of the bot with commands for such tasks; removed after the run

Every command gets a context, so its file stays open and a task costs one write: the text is padded with spaces to a
constant length, which JSON allows. It has a folder of its own, which commands may read and not write.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache

from myrmidon.bot.install import updater
from myrmidon.bot.protocol import Task
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.system import filesystem, platforms

_PADDING = 512
FOLDER = "context"
_CONTEXT = "context.json"


class TaskFiles:
    """Writes these files for one command at a time. The files in ``work`` are removed by `Workdir.clean`."""

    def __init__(self, folder: str, work: str, isolation: Isolation, server: str = "", *, name: str = FOLDER) -> None:
        self.bot_folder = os.open(folder, os.O_RDONLY)
        self.folder = os.path.join(folder, name)
        self.name = os.path.join(name, _CONTEXT)
        self.path = os.path.join(folder, self.name)
        self.isolation = isolation
        self.secret_path = os.path.join(work, "context.json")
        self.bot_file = os.path.join(work, "bot_file.json")
        self.payload = os.path.join(work, "payload.json")
        self.token = os.path.join(work, "token")
        self.zip = os.path.join(work, "bot.zip")
        self.server = json.dumps(server)
        self.dimensions = "[]"
        self.file = -1
        self.size = 0
        self.fingerprint = (0, 0, 0, 0, 0)
        self._create_folder()

    def set_dimensions(self, dimensions: dict[str, list[str]]) -> None:
        """Set the bot's dimensions for all following contexts."""
        pairs = [f"{key}:{value}" for key, values in sorted(dimensions.items()) for value in values]
        self.dimensions = json.dumps(pairs)

    # ---------------------------------------------------------------- context files

    def write_context(self, task: Task) -> str:
        """Write the context of a task; the path of the file. Raises OSError."""
        if task.secret_bytes is not None:
            text = self._context_json(task, f'"secret_bytes":{json.dumps(b64encode(task.secret_bytes).decode())},')
            self.create_file(self.secret_path, text)
            return self.secret_path
        text = self._context_json(task)
        if len(text) > self.size or not self._is_unchanged():
            self._open(-(-(len(text) + _PADDING) // _PADDING) * _PADDING)
        os.pwrite(self.file, text.ljust(self.size), 0)
        return self.path

    def _context_json(self, task: Task, secret: str = "") -> bytes:
        task_id = task.task_id or task.run[:-2] + "00"
        realm = task.realm or task.resource_group
        realm_field = f',"realm":{{"name":{_quoted(realm)}}}' if realm else ""
        deadline, grace = time.time() + task.execution_timeout_s, task.grace_period_s
        return (
            f'{{"swarming":{{{secret}"task":{{"server":{self.server},"task_id":"{task_id}","bot_dimensions":'
            f'{self.dimensions}}}}},"deadline":{{"soft_deadline":{deadline:.3f},"grace_period":{grace}}}{realm_field}}}'
        ).encode()

    def _is_unchanged(self) -> bool:
        """Whether no command has removed, replaced, extended or protected the file.

        The lookup relative to the open folder takes half the time of one by the full path.
        """
        try:
            found = os.stat(self.name, dir_fd=self.bot_folder, follow_symlinks=False)
        except OSError:
            return False
        return _fingerprint(found) == self.fingerprint

    def _open(self, size: int) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self._create_folder()
        filesystem.remove_tree(self.path)
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.isolation.give(self.path)
        os.pwrite(self.file, b" " * size, 0)
        self.size, self.fingerprint = size, _fingerprint(os.fstat(self.file))

    def _create_folder(self) -> None:
        """Create the folder of the context, in place of anything else that a command has put there."""
        if os.path.islink(self.folder) or not os.path.isdir(self.folder):
            filesystem.remove_tree(self.folder)
            os.mkdir(self.folder)
        os.chmod(self.folder, 0o700 if self.isolation.user is None else 0o711)

    # ---------------------------------------------------------------- placeholders

    def expand(self, task: Task) -> tuple[list[str], dict[str, str]]:
        """The command and its variables with all placeholders replaced; creates the files that they refer to.

        Raises ValueError for a folder whose content nobody would store.
        """
        texts = "".join((*task.command, *task.env.values()))
        values = {"EXECUTABLE_SUFFIX": ".exe" if platforms.NAME == "windows" else ""}
        if "${ISOLATED_OUTDIR}" in texts:
            raise ValueError(
                "${ISOLATED_OUTDIR} cannot be used: the server does not store folders of results yet, so they would be "
                "lost. In a job, declare outputs and write them to $MYRMIDON_OUTPUT_DIR"
            )
        if "${SWARMING_BOT_FILE}" in texts:
            values["SWARMING_BOT_FILE"] = self.ensure_bot_file()
        argv_values = {**values, "SWARMING_TASK_ID": task.run}
        new_env = {key: expand_text(value, values) for key, value in task.env.items()}
        return [expand_text(text, argv_values) for text in task.command], new_env

    def ensure_bot_file(self) -> str:
        """Create the file in which hooks can describe the bot to tasks, with an empty object; its path."""
        if not os.path.lexists(self.bot_file):
            self.create_file(self.bot_file, b"{}")
        return self.bot_file

    def write_payload(self, text: str) -> str:
        """Write the payload of a request; the path of the file."""
        self.create_file(self.payload, text.encode())
        return self.payload

    def allow_api(self, token: str, job_id: str) -> dict[bytes, bytes]:
        """Write what a command needs to call the server for its job; its further variables.

        The token is never in the environment, which other processes of the user can read and programs like to print.
        The zip is copied: a command may not read the bot's own one, and the bot may update itself meanwhile.
        """
        self.create_file(self.token, token.encode())
        variables = {b"MYRMIDON_TOKEN_FILE": os.fsencode(self.token), b"MYRMIDON_JOB_ID": job_id.encode()}
        own_zip = updater.own_zip()
        if own_zip is not None:
            with open(own_zip, "rb") as file:
                self.create_file(self.zip, file.read())
            variables[b"MYRMIDON_BOT_ZIP"] = os.fsencode(self.zip)
        return variables

    def create_file(self, path: str, content: bytes) -> None:
        """Create a file that only the command can read."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        self.isolation.give(path)


def _fingerprint(found: os.stat_result) -> tuple[int, int, int, int, int]:
    return (found.st_ino, found.st_size, found.st_mode, found.st_uid, found.st_nlink)


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json.dumps(text)


def last_started_tasks(folder: str) -> list[str]:
    """The tasks in the context files that an earlier process has left: one of them was running when it died."""
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, _CONTEXT)
        if name.partition(".")[0] not in (FOLDER, "work"):
            continue
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, "rb") as file:
            found.append(str(json.loads(file.read(1 << 20))["swarming"]["task"]["task_id"]))
    return found


def has_placeholders(texts: Iterable[str]) -> bool:
    """Whether a text may contain a placeholder."""
    for text in texts:  # noqa: SIM110 - called for every command; faster than any()
        if "${" in text:
            return True
    return False


def expand_text(text: str, values: dict[str, str], separator: str = os.sep) -> str:
    """A text with its placeholders replaced. If one of them is a path, slashes become the system's separator."""
    if "${" not in text:
        return text
    is_path = False
    for name, value in values.items():
        placeholder = f"${{{name}}}"
        if placeholder in text:
            text = text.replace(placeholder, value)
            is_path = is_path or name == "SWARMING_BOT_FILE"
    return text.replace("/", separator) if is_path and separator != "/" else text
