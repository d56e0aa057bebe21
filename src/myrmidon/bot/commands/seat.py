"""A place where commands run, one at a time: its folders and files, its isolation, and what all commands get there.

    work/run      the working directory of the command
    work/secret   the secret bytes; MYRMIDON_SECRET_FILE is its path
    work/outputs  MYRMIDON_OUTPUT_DIR: results for other tasks of the job, if the task has such

The second seat of a bot has `work.1` and `context.1`, and so on.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from myrmidon.bot.commands.task_files import FOLDER, TaskFiles
from myrmidon.bot.commands.workdir import Workdir
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.system import platforms

_TMP_NAMES = (b"TMPDIR", b"TMP", b"TEMP", *((b"MAC_CHROMIUM_TMPDIR",) if platforms.NAME == "macos" else ()))


class InvalidTask(Exception):
    """The task cannot run on any bot; it fails with this message."""


class Seat:
    """``folder`` is the bot's. ``env``: the environment of commands, before a task adds to it."""

    def __init__(self, folder: str, isolation: Isolation, env: dict[bytes, bytes], number: int = 0) -> None:
        self.folder = folder
        self.isolation = isolation
        suffix = f".{number}" if number else ""
        self.workdir = Workdir(os.path.join(folder, "work" + suffix), isolation.user)
        server = os.fsdecode(env.get(b"SWARMING_SERVER", b""))
        self.files = TaskFiles(folder, self.workdir.root, isolation, server, name=FOLDER + suffix)
        self.env = {**env, b"LUCI_CONTEXT": os.fsencode(self.files.path)}
        self.secret = os.path.join(self.workdir.root, "secret")
        self.outputs = os.path.join(self.workdir.root, "outputs")
        self.tmp = ""

    def environment(self) -> dict[bytes, bytes]:
        """The variables of the next command. Its TMPDIR is another one if the last could not be removed."""
        if self.tmp != self.workdir.tmp:
            self.tmp = self.workdir.tmp
            self.env.update(dict.fromkeys(_TMP_NAMES, os.fsencode(self.tmp)))
        return self.env.copy()

    # ---------------------------------------------------------------- folders

    def path(self, relative: str) -> str:
        """The absolute path of a relative one in the run's folder. Raises InvalidTask if it would not be there."""
        return path_below(self.workdir.run, relative)

    def make_folders(self, path: str) -> None:
        """Create a folder in the run's folder, with those above it, for the command to own."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder)
            self.isolation.give(folder)

    def make_output_folder(self) -> str:
        os.mkdir(self.outputs, 0o700)
        self.isolation.give(self.outputs)
        return self.outputs

    def working_directory(self, relative: str) -> str:
        """Create the working directory; its path. Links in a cache must not lead out of the run's folder."""
        root = self.workdir.run
        if not relative:
            return root
        path = self.path(relative)
        if not (path == root or os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)):
            raise InvalidTask(f"relative_cwd {relative!r} leads out of the run's folder")
        try:
            self.make_folders(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidTask(f"relative_cwd {relative!r} is not a folder") from error
        except PermissionError as error:
            raise InvalidTask(f"relative_cwd {relative!r} is in a folder without write permission") from error
        return path

    def has_no_links(self, path: str) -> bool:
        """Whether all parts of a path in the bot's folder are real folders. A cache behind a link is not put back."""
        while len(path) > len(self.folder):
            if os.path.islink(path) or not os.path.isdir(path):
                return False
            path = os.path.dirname(path)
        return True

    def stdin_file(self, content: bytes) -> IO[bytes]:
        """A file without a name that holds the stdin of a command, to be read from its start.

        Everybody may read it: a command that opens /dev/stdin opens the file again, perhaps as another user.
        """
        file = tempfile.TemporaryFile(dir=self.workdir.tmp)  # noqa: SIM115 - the caller closes it
        try:
            os.fchmod(file.fileno(), 0o444)
            file.write(content)
            file.flush()
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file


def path_below(root: str, path: str) -> str:
    """The absolute path of a relative path. Raises InvalidTask if it would not be below root."""
    parts = path.replace("\\", "/").split("/")
    if not path or "\0" in path or path.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise InvalidTask(f"{path!r} is not a path below the run's folder")
    return os.path.normpath(os.path.join(root, *parts))
