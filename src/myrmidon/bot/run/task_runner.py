"""Runs the command of a task: prepares folder, environment, caches and secret; waits; cleans up; makes the report.

    work/secret   the secret bytes; MYRMIDON_SECRET_FILE is its path
    work/outputs  MYRMIDON_OUTPUT_DIR: results for other tasks of the job, if the task has such

When the report is made, all files of the command are removed and all its processes are killed. An error of the task,
such as a missing program, is a failed task with a message in its stderr. An error of the bot is reported as a fault,
and the server retries the task elsewhere.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from base64 import b64decode
from contextlib import nullcontext
from functools import partial
from typing import IO, Any, Callable, Dict, List, Tuple

from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.run.command import Command
from myrmidon.bot.run.command_outputs import read_outputs
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.run.run_log import TransferFailed
from myrmidon.bot.run.run_record import failed_record, fault_record, finish_record, os_error_record
from myrmidon.bot.run.task_context import TaskContext, has_placeholders
from myrmidon.bot.run.workdir import Workdir
from myrmidon.bot.system import clock, filesystem, platforms, processes
from myrmidon.bot.system.start_failures import describe_start_failure

_BOT_ERRNOS = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""The exit codes of a shell for a command that cannot be started."""
_TMP_NAMES = (b"TMPDIR", b"TMP", b"TEMP", *((b"MAC_CHROMIUM_TMPDIR",) if platforms.NAME == "macos" else ()))


BeforeTask = Callable[[Callable[[], str], List[str], Dict[bytes, bytes]], Tuple[List[str], Dict[bytes, bytes]]]
"""(function that creates the bot file, argv, environment) -> (argv, environment), as changed by hooks."""


class InvalidTask(Exception):
    """The task cannot run on any bot; it fails with this message."""


class ImpossibleTask(Exception):
    """The server cannot give the task what it needs; it ends with this message."""


class TaskRunner:
    """Runs commands one after the other in the bot's folder. ``env`` is their environment, before a task adds to it.

    ``leftover_problem``, ``cache_sizes`` and ``stats`` describe the last run.
    """

    def __init__(
        self,
        folder: str,
        caches: NamedCaches,
        watcher: CommandWatcher,
        env: dict[bytes, bytes],
        isolation: Isolation,
    ) -> None:
        self.folder = folder
        self.isolation = isolation
        self.workdir = Workdir(folder, isolation.user)
        self.caches = caches
        self.watcher = watcher
        self.devnull = os.open(os.devnull, os.O_RDONLY)
        self.secret = os.path.join(self.workdir.root, "secret")
        self.outputs = os.path.join(self.workdir.root, "outputs")
        self.store_file: Callable[[Command, str, bytes], None] = _store_nothing
        self.env = env
        self.tmp = ""
        server = os.fsdecode(env.get(b"SWARMING_SERVER", b""))
        self.context = TaskContext(folder, self.workdir.root, isolation, server)
        self.env[b"LUCI_CONTEXT"] = os.fsencode(self.context.path)
        self.argv: list[str] = []
        self.leftover_problem = ""
        self.before_task: BeforeTask | None = None
        self.cache_sizes: dict[str, int] = {}
        self.stats: dict[str, float] = {}

    def execute(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """Run the command of a task; the record to report. None when the run was given to another bot."""
        begun = clock.boottime()
        command = Command(task, begun)
        self.stats = {}
        installed: list[tuple[str, str]] = []
        try:
            self.workdir.begin(begun)
            cwd, env = self._prepare(task, installed)
            if installed or self.before_task is not None:
                command.restart_clock(clock.boottime())
            process = self._start(command, cwd, env)
            code = self._wait(command, process)
            record = self._make_record(command, code)
            if task.get("output_types") and record is not None:
                record = self._add_outputs(command, record)
        except InvalidTask as error:
            record = failed_record(command, str(error))
        except ImpossibleTask as error:
            record = fault_record(command, "client_error", str(error))
        except processes.NotStarted as error:
            record = self._start_failure(command, cwd, error)
        except OSError as error:
            record = os_error_record(command, error)
        finally:
            self.watcher.release(command)
            problem = self._clean(task, installed) or self.leftover_problem
        if problem and record is not None:
            record["problem"] = problem
        if record is not None and record["report"]["type"] == "finish":
            record["report"]["stats"] = self.stats
            if installed:
                record["report"]["caches"] = self.cache_sizes
        return record

    # ---------------------------------------------------------------- preparation and start

    def _prepare(self, task: dict[str, Any], installed: list[tuple[str, str]]) -> tuple[str, dict[bytes, bytes]]:
        if task.get("problem"):
            raise ImpossibleTask(task["problem"])
        if self.tmp != self.workdir.tmp:
            self.tmp = self.workdir.tmp
            self.env.update(dict.fromkeys(_TMP_NAMES, os.fsencode(self.tmp)))
        self.argv, changes = task["command"], task.get("env")
        context_path = self.context.write_context(task)
        if task.get("caches"):
            self._install_caches(task, installed)
        if has_placeholders(self.argv) or (changes and has_placeholders(changes.values())):
            try:
                self.argv, changes = self.context.expand(task)
            except ValueError as error:
                raise InvalidTask(str(error)) from error
        env = self._environment(task, changes, context_path)
        return self._working_directory(task.get("relative_cwd") or ""), env

    def _environment(
        self, task: dict[str, Any], changes: dict[str, str] | None, context_path: str
    ) -> dict[bytes, bytes]:
        """The environment of all commands, with the task's id and the changes of the task and of hooks."""
        secret, prefixes = task.get("secret_bytes"), task.get("env_prefixes")
        env = self.env.copy()
        env[b"MYRMIDON_TASK_ID"] = env[b"SWARMING_TASK_ID"] = task["run"].encode()
        if secret is not None:
            self.context.create_file(self.secret, b64decode(secret))
            env[b"MYRMIDON_SECRET_FILE"] = os.fsencode(self.secret)
            env[b"LUCI_CONTEXT"] = os.fsencode(context_path)
        if task.get("api_token"):
            env.update(self.context.allow_api(task["api_token"], task["job_id"]))
        if task.get("output_types"):
            env[b"MYRMIDON_OUTPUT_DIR"] = os.fsencode(self._make_output_folder())
        if task.get("payload"):
            env[b"MYRMIDON_PAYLOAD"] = os.fsencode(self.context.write_payload(task["payload"]))
        if changes:
            _apply_changes(env, changes)
        if prefixes:
            self._add_path_prefixes(env, prefixes)
        if self.before_task is not None:
            self.argv, env = self.before_task(self.context.ensure_bot_file, self.argv, env)
        return env

    def _make_output_folder(self) -> str:
        os.mkdir(self.outputs, 0o700)
        self.isolation.give(self.outputs)
        return self.outputs

    def _install_caches(self, task: dict[str, Any], installed: list[tuple[str, str]]) -> None:
        paths = {cache["name"]: path_below(self.workdir.run, cache["path"]) for cache in task["caches"]}
        for name, path in paths.items():
            inner = [other for other in paths.values() if other.startswith(path + os.sep)]
            if inner or list(paths.values()).count(path) > 1 or path == self.workdir.run:
                raise InvalidTask(f"the path of cache {name} overlaps another one")
        begun = clock.boottime()
        owner = self._cache_owner(task)
        self.caches.make_room(owner, list(paths), task.get("cache_hints") or {})
        for name, path in sorted(paths.items()):
            self._make_folders(os.path.dirname(path))
            try:
                self.caches.install(owner, name, path)
            except ValueError as error:
                raise InvalidTask(str(error)) from error
            self.isolation.give(path)
            installed.append((name, path))
        self.stats["named_caches_install"] = round(clock.boottime() - begun, 6)

    def _cache_owner(self, task: dict[str, Any]) -> str:
        """Whose caches a task uses: those of its resource group, and of the user that commands run as."""
        group = task.get("resource_group") or ""
        return group if self.isolation.user is None else f"{group}@{self.isolation.user.name}"

    def _make_folders(self, path: str) -> None:
        """Create a folder in the run's folder, with those above it, for the command to own."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder)
            self.isolation.give(folder)

    def _add_path_prefixes(self, env: dict[bytes, bytes], prefixes: dict[str, list[str]]) -> None:
        for key, paths in prefixes.items():
            name = os.fsencode(key)
            parts = [os.fsencode(path_below(self.workdir.run, path)) for path in paths]
            if env.get(name):
                parts.append(env[name])
            env[name] = os.fsencode(os.pathsep).join(parts)

    def _working_directory(self, relative: str) -> str:
        """Create the working directory; its path. Links in a cache must not lead out of the run's folder."""
        if not relative:
            return self.workdir.run
        path = path_below(self.workdir.run, relative)
        if not _is_inside(path, self.workdir.run):
            raise InvalidTask(f"relative_cwd {relative!r} leads out of the run's folder")
        try:
            self._make_folders(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidTask(f"relative_cwd {relative!r} is not a folder") from error
        except PermissionError as error:
            raise InvalidTask(f"relative_cwd {relative!r} is in a folder without write permission") from error
        return path

    def _start(self, command: Command, cwd: str, env: dict[bytes, bytes]) -> subprocess.Popen[bytes]:
        output = command.output
        output.open(merged=bool(command.task.get("merge_output")))
        given = command.task.get("stdin")
        try:
            with _stdin_file(b64decode(given), self.workdir.tmp) if given is not None else nullcontext() as file:
                stdin = self.devnull if file is None else file.fileno()
                streams = (stdin, output.writers[0], output.writers[-1])
                process = self.isolation.start(self.argv, env, cwd, streams)
        except (ValueError, IndexError) as error:
            raise InvalidTask(f"the command could not be started: {error}") from error
        output.close_writers()
        command.pid = process.pid
        self.watcher.begin(command)
        return process

    def _start_failure(self, command: Command, cwd: str, error: OSError) -> dict[str, Any]:
        """The record of a command that could not be started: a fault of the bot, or a failed task."""
        if error.errno in _BOT_ERRNOS or not os.path.isdir(cwd):
            return os_error_record(command, error)
        code = _NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE
        return failed_record(command, describe_start_failure(self.argv, error), code)

    # ---------------------------------------------------------------- end and cleanup

    def _wait(self, command: Command, process: subprocess.Popen[bytes]) -> int:
        """Wait for the command, kill what it has left behind, and read the rest of its output; the exit code."""
        processes.wait_until_ended(command.pid)
        with self.watcher.lock:
            command.ended = True
            code = process.wait()
        all_dead = processes.kill_leftovers(command.pid)
        self.leftover_problem = "" if all_dead else "a process left behind by a command cannot be killed"
        self.watcher.finish(command)
        return code

    def _make_record(self, command: Command, code: int) -> dict[str, Any] | None:
        """The record of a command that has ended. A failure while the disk is full is blamed on the bot."""
        duration = clock.boottime() - command.begun
        if command.end_reason == "lost":
            return None
        if command.end_reason in ("shutdown", "disk_full", "bot_error"):
            return fault_record(command, command.end_reason, f"the bot ended the command: {command.end_reason}")
        if code and not command.end_reason and filesystem.is_nearly_full(self.workdir.root):
            return fault_record(
                command, "disk_full", f"the command failed with exit code {code} while the disk was full"
            )
        return finish_record(command, code, duration)

    def _add_outputs(self, command: Command, record: dict[str, Any]) -> dict[str, Any] | None:
        """Add what a command has written for other tasks. One that succeeds without all of it has failed."""
        report = record["report"]
        if report["type"] != "finish":
            return record
        types = command.task["output_types"]
        has_succeeded = report["exit_code"] == 0 and not command.end_reason
        try:
            outputs, problem = read_outputs(self.outputs, types, partial(self.store_file, command))
        except TransferFailed as error:
            if command.end_request is not None and not command.end_reason:
                command.end_reason, _ = command.end_request
                return self._make_record(command, 1)
            if not has_succeeded:
                return record
            message = f"the outputs could not be stored: {error}"
            if not error.is_permanent:
                return fault_record(command, "upload_failed", message)
            return {**record, "report": {**report, "exit_code": 1, "message": message}}
        if any(output["payload"] for output in outputs):
            report["outputs"] = outputs
        if problem and has_succeeded:
            report.update(exit_code=1, message=problem)
        return record

    def _clean(self, task: dict[str, Any], installed: list[tuple[str, str]]) -> str:
        """Put caches back and clean the working directory; a problem to report, or empty. It does not fail the run."""
        try:
            if installed:
                self._put_caches_back(self._cache_owner(task), installed)
            begun = clock.boottime()
            self.caches.trim()
            self.stats["cache_trim"] = round(clock.boottime() - begun, 6)
            begun = clock.boottime()
            problem = self.workdir.clean()
            self.stats["cleanup"] = round(clock.boottime() - begun, 6)
        except OSError as error:
            return f"the working directory could not be cleaned: {error}"
        return problem

    def _put_caches_back(self, owner: str, installed: list[tuple[str, str]]) -> None:
        self.cache_sizes = {}
        begun = clock.boottime()
        for name, path in installed:
            size = self.caches.put_back(owner, name, path) if _has_no_links(path, self.folder) else None
            if size is not None:
                self.cache_sizes[name] = size
        self.stats["named_caches_uninstall"] = round(clock.boottime() - begun, 6)


def _store_nothing(_command: Command, _digest: str, _data: bytes) -> None:
    raise TransferFailed("this bot cannot store files")


# ---------------------------------------------------------------- paths and environments


def path_below(root: str, path: str) -> str:
    """The absolute path of a relative path. Raises InvalidTask if it would not be below root."""
    parts = path.replace("\\", "/").split("/")
    if not path or "\0" in path or path.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise InvalidTask(f"{path!r} is not a path below the run's folder")
    return os.path.normpath(os.path.join(root, *parts))


def _is_inside(path: str, root: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(root) + os.sep) or path == root


def _has_no_links(path: str, root: str) -> bool:
    """Whether all parts of a path below root are real folders. A cache behind a link is not put back."""
    while len(path) > len(root):
        if os.path.islink(path) or not os.path.isdir(path):
            return False
        path = os.path.dirname(path)
    return True


def _apply_changes(env: dict[bytes, bytes], changes: dict[str, str]) -> None:
    """Set variables; an empty value deletes one."""
    for key, value in changes.items():
        if "=" in key:
            raise InvalidTask(f"{key!r} cannot be the name of a variable")
        if value:
            env[os.fsencode(key)] = os.fsencode(value)
        else:
            env.pop(os.fsencode(key), None)


def _stdin_file(content: bytes, folder: str) -> IO[bytes]:
    """A file without a name that holds the stdin of a command, to be read from its start.

    Everybody may read it: a command that opens /dev/stdin opens the file again, perhaps as another user.
    """
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    try:
        os.fchmod(file.fileno(), 0o444)
        file.write(content)
        file.flush()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
