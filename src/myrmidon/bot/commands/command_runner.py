"""Executes commands on one seat: prepares folder, environment, caches and secret; waits; cleans up; makes the record.

When the record is made, all files of the command are removed and all its processes are killed. An error of the task,
such as a missing program, is a failed task with a message in its stderr. An error of the bot is reported as a fault,
and the server retries the task elsewhere.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from myrmidon.bot.commands.command_outputs import read_outputs
from myrmidon.bot.commands.command_watcher import CommandProcess, CommandWatcher
from myrmidon.bot.commands.seat import InvalidTask, Seat
from myrmidon.bot.commands.task_files import has_placeholders
from myrmidon.bot.commands.task_hooks import TaskHooks
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.protocol import FinishReport, Payload, Record, Task
from myrmidon.bot.run import reports
from myrmidon.bot.run.reports import TransferFailed
from myrmidon.bot.run.run import STORING, Run
from myrmidon.bot.system import clock, filesystem, processes
from myrmidon.bot.system.start_failures import describe_start_failure

_BOT_ERRNOS = (
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
)  # fmt: skip
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""The exit codes of a shell for a command that cannot be started."""
_FAILED = "the bot could not run the command"

log = logging.getLogger("myrmidon.bot")


def _store_nothing(_run: Run, _digest: str, _data: bytes) -> None:
    raise TransferFailed("this bot cannot store files")


class CommandRunner:
    """``store_file`` stores a file of a run at the server. ``is_stopping``: the bot was told to stop, so SIGTERM may
    have reached the command, too.

    ``argv``, ``installed`` (names and paths of caches), ``stats`` and ``cache_sizes`` describe the present run.
    """

    def __init__(
        self,
        seat: Seat,
        watcher: CommandWatcher,
        caches: NamedCaches,
        hooks: TaskHooks | None = None,
        store_file: Callable[[Run, str, bytes], None] = _store_nothing,
        report_error: Callable[[str], None] = log.error,
        is_stopping: Callable[[], bool] = bool,
    ) -> None:
        self.seat = seat
        self.watcher = watcher
        self.caches = caches
        self.hooks = hooks
        self.store_file = store_file
        self.report_error = report_error
        self.is_stopping = is_stopping
        self.devnull = os.open(os.devnull, os.O_RDONLY)
        self.argv: list[str] = []
        self.installed: list[tuple[str, str]] = []
        self.stats: dict[str, float] = {}
        self.cache_sizes: dict[str, int] = {}

    def run(self, run: Run) -> Record | None:
        """Run a command to its end; the record to report, None if it is lost.

        An unexpected exception fails this run and not the bot.
        """
        try:
            record = self._complete(run, self.execute(run))
        except Exception as error:
            log.exception("run %s failed", run.id)
            processes.kill_all_children()
            return reports.of_error(run, error, "the bot failed")
        return record

    def execute(self, run: Run) -> Record | None:
        """The record of a command, without what the bot adds to it."""
        process = CommandProcess(run)
        self.stats, self.cache_sizes, self.installed = {}, {}, []
        cwd = ""
        try:
            self.seat.workdir.begin(run.taken_at)
            cwd, env = self._prepare(run.task)
            if run.end_request is not None:
                run.accept_end(clock.boottime())
                return reports.of_end(run, 0.0, 1)
            started = self._start(process, cwd, env)
            code = self._wait(process, started)
            return self._record_of(run, code)
        except InvalidTask as error:
            return reports.start_failure(run, _age(run), 1, str(error))
        except processes.NotStarted as error:
            return self._start_failure(run, cwd, error)
        except OSError as error:
            return reports.of_error(run, error, _FAILED)
        finally:
            self.watcher.release(process)
            self._clean(run.task)

    def _complete(self, run: Run, record: Record | None) -> Record | None:
        """Add the overhead of the bot to a result.

        A machine that shuts down sends SIGTERM to the command and to the bot alike: that is a fault.
        """
        report = record.report if record is not None else None
        if record is None or not isinstance(report, FinishReport):
            return record
        if report.exit_code == -signal.SIGTERM and self.is_stopping() and not run.end_reason:
            message = "the machine was shut down: the command and the bot received SIGTERM"
            return reports.fault(run, "shutdown", message)
        overhead = max(clock.boottime() - run.taken_at - report.duration, 0.0)
        return reports.with_fields(
            record,
            stats={"bot_overhead": round(overhead, 6), **self.stats},
            caches=self.cache_sizes if self.installed else None,
        )

    # ---------------------------------------------------------------- preparation and start

    def _prepare(self, task: Task) -> tuple[str, dict[bytes, bytes]]:
        """(working directory, environment)."""
        files = self.seat.files
        env = self.seat.environment()
        self.argv, changes = list(task.command), task.env
        context_path = files.write_context(task)
        if task.caches:
            self._install_caches(task)
        if has_placeholders(self.argv) or has_placeholders(changes.values()):
            try:
                self.argv, changes = files.expand(task)
            except ValueError as error:
                raise InvalidTask(str(error)) from error
        env[b"MYRMIDON_TASK_ID"] = env[b"SWARMING_TASK_ID"] = task.run.encode()
        if task.secret_bytes is not None:
            files.create_file(self.seat.secret, task.secret_bytes)
            env[b"MYRMIDON_SECRET_FILE"] = os.fsencode(self.seat.secret)
            env[b"LUCI_CONTEXT"] = os.fsencode(context_path)
        if task.api_token:
            env.update(files.allow_api(task.api_token, task.job_id))
        if task.output_types:
            env[b"MYRMIDON_OUTPUT_DIR"] = os.fsencode(self.seat.make_output_folder())
        if task.payload:
            env[b"MYRMIDON_PAYLOAD"] = os.fsencode(files.write_payload(task.payload))
        self._apply_changes(env, changes, task.env_prefixes)
        if self.hooks is not None and self.hooks.has_before_task():
            self.argv, env = self.hooks.before_task(files.ensure_bot_file, self.argv, env)
        return self.seat.working_directory(task.relative_cwd), env

    def _apply_changes(self, env: dict[bytes, bytes], changes: dict[str, str], prefixes: dict[str, list[str]]) -> None:
        """Set variables; an empty value deletes one. Prefixes are paths in the run's folder."""
        for key, value in changes.items():
            if "=" in key:
                raise InvalidTask(f"{key!r} cannot be the name of a variable")
            if value:
                env[os.fsencode(key)] = os.fsencode(value)
            else:
                env.pop(os.fsencode(key), None)
        for key, paths in prefixes.items():
            name = os.fsencode(key)
            parts = [os.fsencode(self.seat.path(path)) for path in paths]
            env[name] = os.pathsep.encode().join([*parts, env[name]] if env.get(name) else parts)

    def _install_caches(self, task: Task) -> None:
        seat = self.seat
        paths = {cache.name: seat.path(cache.path) for cache in task.caches}
        for name, path in paths.items():
            inner = [other for other in paths.values() if other.startswith(path + os.sep)]
            if inner or list(paths.values()).count(path) > 1 or path == seat.workdir.run:
                raise InvalidTask(f"the path of cache {name} overlaps another one")
        begun = clock.boottime()
        owner = self._cache_owner(task)
        self.caches.make_room(owner, list(paths), task.cache_hints)
        for name, path in sorted(paths.items()):
            seat.make_folders(os.path.dirname(path))
            try:
                self.caches.install(owner, name, path)
            except ValueError as error:
                raise InvalidTask(str(error)) from error
            seat.isolation.give(path)
            self.installed.append((name, path))
        self._note_time("named_caches_install", begun)

    def _cache_owner(self, task: Task) -> str:
        """Whose caches a task uses: those of its resource group, and of the user that commands run as."""
        group, user = task.resource_group or "", self.seat.isolation.user
        return group if user is None else f"{group}@{user.name}"

    def _note_time(self, name: str, begun: float) -> None:
        self.stats[name] = round(clock.boottime() - begun, 6)

    def _start(self, process: CommandProcess, cwd: str, env: dict[bytes, bytes]) -> subprocess.Popen[bytes]:
        """Start the command. Hooks and the preparation of caches do not count as its time."""
        run, seat = process.run, self.seat
        process.open_pipes()
        try:
            given = run.task.stdin
            with seat.stdin_file(given) if given is not None else nullcontext() as file:
                streams = (self.devnull if file is None else file.fileno(), process.writers[0], process.writers[-1])
                run.begin(clock.boottime())
                started = seat.isolation.start(self.argv, env, cwd, streams)
        except (ValueError, IndexError) as error:
            raise InvalidTask(f"the command could not be started: {error}") from error
        process.close_writers()
        process.pid = started.pid
        self.watcher.begin(process)
        return started

    def _start_failure(self, run: Run, cwd: str, error: OSError) -> Record:
        """The record of a command that could not be started: a fault of the bot, or a failed task."""
        if error.errno in _BOT_ERRNOS or not os.path.isdir(cwd):
            return reports.of_error(run, error, _FAILED)
        code = _NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE
        return reports.start_failure(run, _age(run), code, describe_start_failure(self.argv, error))

    # ---------------------------------------------------------------- end and cleanup

    def _wait(self, process: CommandProcess, started: subprocess.Popen[bytes]) -> int:
        """Wait for the command, kill what it has left behind, and read the rest of its output; the exit code."""
        processes.wait_until_ended(process.pid)
        with self.watcher.lock:
            process.has_ended = True
            code = started.wait()
        if not processes.kill_leftovers(process.pid):
            self.report_error("a process left behind by a command cannot be killed")
        self.watcher.read_rest(process)
        return code

    def _record_of(self, run: Run, code: int) -> Record | None:
        """The record of a command that has ended. A failure while the disk is full is blamed on the bot."""
        duration = _age(run)
        if code and not run.end_reason and filesystem.is_nearly_full(self.seat.workdir.root):
            return reports.fault(run, "disk_full", f"the command failed with exit code {code} while the disk was full")
        record = reports.of_end(run, duration, code)
        if run.task.output_types and record is not None and isinstance(record.report, FinishReport):
            return self._add_outputs(run, record, record.report)
        return record

    def _add_outputs(self, run: Run, record: Record, report: FinishReport) -> Record | None:
        """Add what a command has written for other tasks. One that succeeds without all of it has failed."""
        has_succeeded = report.exit_code == 0 and not run.end_reason
        run.state = STORING
        try:
            outputs, problem = read_outputs(self.seat.outputs, run.task.output_types, partial(self.store_file, run))
        except TransferFailed as error:
            if run.accept_end(clock.boottime()):
                return reports.of_end(run, report.duration, 1)
            if not has_succeeded:
                return record
            message = f"the outputs could not be stored: {error}"
            if not error.is_permanent:
                return reports.fault(run, "upload_failed", message)
            return reports.with_fields(record, exit_code=1, message=message)
        if any(output.payload != Payload() for output in outputs):
            record = reports.with_fields(record, outputs=outputs)
        if problem and has_succeeded:
            record = reports.with_fields(record, exit_code=1, message=problem)
        return record

    def _clean(self, task: Task) -> None:
        """Put caches back and clean the working directory. A problem is reported, and does not fail the run."""
        try:
            self._put_caches_back(task)
            begun = clock.boottime()
            self.caches.trim()
            self._note_time("cache_trim", begun)
            begun = clock.boottime()
            problem = self.seat.workdir.clean()
            self._note_time("cleanup", begun)
        except OSError as error:
            problem = f"the working directory could not be cleaned: {error}"
        if problem:
            self.report_error(problem)

    def _put_caches_back(self, task: Task) -> None:
        begun = clock.boottime()
        owner = self._cache_owner(task)
        for name, path in self.installed:
            size = self.caches.put_back(owner, name, path) if self.seat.has_no_links(path) else None
            if size is not None:
                self.cache_sizes[name] = size
        if self.installed:
            self._note_time("named_caches_uninstall", begun)


def _age(run: Run) -> float:
    """How long a command has run, or was prepared."""
    return clock.boottime() - (run.begun or run.taken_at)
