"""The worker process: the main thread runs commands; others run functions, talk to the server, watch long commands."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import logging.handlers
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from myrmidon.bot.commands.command_runner import CommandRunner
from myrmidon.bot.commands.command_watcher import CommandWatcher
from myrmidon.bot.commands.seat import Seat
from myrmidon.bot.commands.task_files import last_started_tasks
from myrmidon.bot.commands.task_hooks import TaskHooks
from myrmidon.bot.debug_console import DebugConsole
from myrmidon.bot.install import exit_codes, startup_config
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link.file_transfers import FileTransfers
from myrmidon.bot.link.next_action import SHUTDOWN_S
from myrmidon.bot.link.session_loop import SessionLoop
from myrmidon.bot.machine.environment_cache import EnvironmentCache, EnvironmentOffer
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.protocol import FinishReport
from myrmidon.bot.run import reports
from myrmidon.bot.run.isolation import Isolation, base_environment
from myrmidon.bot.run.run import Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.run.watch import Watch
from myrmidon.bot.signals import SignalThread
from myrmidon.bot.slots.environment_build import Builder
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.slots.function_loop import FunctionLoop
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.run_files import RunFiles
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, host, processes
from myrmidon.bot.system.interpreters import Interpreters
from myrmidon.bot.system.users import TaskUser
from myrmidon.functions.native_task import FOLDERS_VARIABLE

MAX_RUNS = 1
"""How many commands run at a time."""

log = logging.getLogger("myrmidon.bot")


class Worker:
    """One bot in its folder: builds all parts and connects them.

    ``MAX_RUNS`` commands can run at a time, each on a seat and in a thread of its own; the first in the main thread.
    """

    def __init__(self, startup: StartupConfig) -> None:
        self.folder = startup.folder
        self.spool = LogSpool(os.path.join(startup.folder, "spool"))
        self.caches = NamedCaches(os.path.join(startup.folder, "c"))
        self.journal = ResultJournal(os.path.join(startup.folder, "journal"))
        self.watch = Watch(self.spool)
        self.watcher = CommandWatcher(self.watch, self._on_unkillable)
        suspect_tasks = last_started_tasks(startup.folder)  # before a seat overwrites what an earlier process has left
        self.seats = [_make_seat(startup, number) for number in range(MAX_RUNS)]
        self.run_queue = RunQueue(self.journal.recovered, startup.slots, MAX_RUNS)
        self.session_loop = loop = SessionLoop(
            startup, self.run_queue, journal=self.journal, spool=self.spool, caches=self.caches, watch=self.watch
        )
        loop.suspect_tasks = suspect_tasks
        self.journal.on_error = loop.reporter.report_error
        self.watch.on_output = loop.notify_output
        self.transfers = FileTransfers(startup.server, lambda: loop.http.bearer, lambda: loop.http.extra)
        self.task_hooks = TaskHooks(loop.status)
        self.function_loop = self._make_function_loop(startup)
        loop.status.isolation = self.seats[0].isolation.methods()
        loop.status.on_dimensions = self._set_dimensions
        loop.status.on_refresh = self._refresh_isolation
        if self.caches.problem:
            loop.reporter.report_error(self.caches.problem)

    def _make_function_loop(self, startup: StartupConfig) -> FunctionLoop:
        session_loop = self.session_loop
        environments = _make_environments(startup)
        session_loop.status.environments = environments.offer
        launcher = _make_launcher(startup)
        function_loop = FunctionLoop(
            self.run_queue,
            launcher,
            RunFiles(launcher.shared, self.transfers, environments),
            self.watch,
            self.journal,
            server=startup.server,
            bot_id=startup.bot_id,
            report_error=session_loop.reporter.report_error,
        )
        function_loop.on_results = session_loop.notify
        function_loop.on_success = session_loop.note_success
        function_loop.usd_per_s = lambda: session_loop.status.usd_per_s
        return function_loop

    def _make_runner(self, seat: Seat) -> CommandRunner:
        report_error = self.session_loop.reporter.report_error
        store = self.transfers.store
        return CommandRunner(
            seat, self.watcher, self.caches, self.task_hooks, store, report_error, lambda: self.run_queue.signals > 0
        )

    def _set_dimensions(self, dimensions: dict[str, list[str]]) -> None:
        for seat in self.seats:
            seat.files.set_dimensions(dimensions)

    def _refresh_isolation(self) -> None:
        for seat in self.seats:
            seat.isolation.refresh()
        self.function_loop.launcher.refresh()

    def run(self) -> int:
        """Run tasks until told to end; the exit code. An exception ends the process, and a new worker is started."""
        self.watcher.start()
        self.function_loop.start()
        loop_thread = threading.Thread(target=self.session_loop.run, name="session", daemon=True)
        loop_thread.start()
        others = [threading.Thread(target=self._run_commands, args=(seat,), daemon=True) for seat in self.seats[1:]]
        for thread in others:
            thread.start()
        self._run_commands(self.seats[0])
        for thread in (*others, loop_thread):
            thread.join(SHUTDOWN_S)
        self.function_loop.close()
        host.unregister_bot(self.folder)
        return self.run_queue.exit_code

    def _run_commands(self, seat: Seat) -> None:
        """Run commands on one seat until the worker is to end."""
        runner, run_queue = self._make_runner(seat), self.run_queue
        while True:
            run = run_queue.next_command()
            if run is None:
                return
            run.usd_per_s = self.session_loop.status.usd_per_s
            record = runner.run(run)
            if record is None:
                self.spool.remove(run.id)
            else:
                self.journal.add(record)
            run_queue.commands.note_durations(1, clock.boottime() - run.taken_at)
            run_queue.finish([(run, record)])
            self.session_loop.notify()
            self.task_hooks.after_task(run, record)
            if record is not None and isinstance(record.report, FinishReport) and record.report.exit_code == 0:
                self.session_loop.note_success()

    def on_signal(self, _number: int, _: object) -> None:
        """Signal handler for SIGTERM and SIGINT: finish what runs; on a second signal, kill the commands.

        During a requested reboot the signal means that the machine goes down: exit at once.
        """
        if self.run_queue.rebooting:
            os._exit(0)
        if self.run_queue.count_signal() > 1:
            for run in list(self.run_queue.commands.live.values()):
                run.request_end("shutdown", 0.0)
        self.session_loop.wake()

    def _on_unkillable(self, run: Run) -> None:
        """A command survives SIGKILL: record a fault and exit, so that the supervisor starts a new worker."""
        self.journal.add(reports.fault(run, "bot_error", "the command could not be killed")._replace(logs=()))
        self.journal.sync()
        os._exit(exit_codes.UNKILLABLE_COMMAND)


def _make_environments(startup: StartupConfig) -> Environments:
    """What makes the environments of functions; builds are kept away from the bot as functions are."""
    user = startup.find_task_user()
    builder = Builder(_environment(startup, user), lambda folder: _isolate(startup, folder, ()))
    interpreters = Interpreters(user.popen_arguments() if user is not None else None)
    return Environments(EnvironmentOffer(EnvironmentCache(startup.environments), interpreters), builder)


def _make_launcher(startup: StartupConfig) -> Launcher:
    """What starts the processes for functions: kept away from the bot, from commands, and from each other."""
    user = startup.find_task_user()
    env = _environment(startup, user)
    if startup.library_dirs:
        env[os.fsencode(FOLDERS_VARIABLE)] = os.fsencode(os.pathsep.join(startup.library_dirs))
    return Launcher(startup.folder, user, env, partial(_isolate, startup))


def _isolate(startup: StartupConfig, writable: str, readable: Sequence[str]) -> Isolation:
    """What starts processes that may write to one folder of the bot and read others."""
    return _restrict(startup, Isolation(startup.find_task_user()), writable, readable)


def _restrict(startup: StartupConfig, isolation: Isolation, writable: str, readable: Sequence[str]) -> Isolation:
    if startup.isolation != startup_config.OFF:
        hidden = [*startup.hidden, startup.environments]
        isolation.use_landlock(startup.folder, writable=writable, readable=readable, hidden=hidden)
    return isolation


def _environment(startup: StartupConfig, user: TaskUser | None) -> dict[bytes, bytes]:
    """The environment of commands and functions, before a task adds to it."""
    marker, _, value = os.fsdecode(processes.environment_marker(startup.folder)).partition("=")
    added = {
        **(user.environment if user is not None else {}),
        "MYRMIDON_BOT_ID": startup.bot_id,
        "MYRMIDON_SERVER": startup.server,
        "SWARMING_HEADLESS": "1",
        "SWARMING_BOT_ID": startup.bot_id,
        "SWARMING_SERVER": startup.first_server,
        marker: value,
    }
    return base_environment(startup.pass_env, added)


def _make_seat(startup: StartupConfig, number: int) -> Seat:
    """Where commands run: with their environment, and kept away from the bot as far as this machine can do that."""
    isolation = Isolation(startup.find_task_user())
    seat = Seat(startup.folder, isolation, _environment(startup, isolation.user), number)
    _restrict(startup, isolation, seat.workdir.root, (seat.files.folder,))
    return seat


def main(argv: list[str]) -> int:
    """The worker process, started by the supervisor: worker --dir DIR --ready FD --supervisor PID."""
    options = dict(zip(argv[::2], argv[1::2]))
    _set_up_logging(options["--dir"])
    processes.become_reaper()
    processes.unblock_signals()
    signal.signal(signal.SIGHUP, _on_supervisor_death)
    processes.signal_when_parent_dies(signal.SIGHUP)
    if os.getppid() != int(options["--supervisor"]):
        return exit_codes.ORPHANED  # it died before its death could be signalled
    sys.setswitchinterval(0.0005)  # the thread that runs commands must not wait long for the session thread
    worker = Worker(StartupConfig(options["--dir"]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.on_signal)
    _dump_stacks_on_signal(options["--dir"])
    SignalThread({signal.SIGUSR2: _make_console(worker).open}).install()
    os.write(int(options["--ready"]), b"1")
    os.close(int(options["--ready"]))
    gc.freeze()
    return worker.run()


def _dump_stacks_on_signal(folder: str) -> None:
    """SIGUSR1 writes the stacks of all threads to stacks.log, to examine a bot that seems to hang."""
    path = os.path.join(folder, "stacks.log")
    with contextlib.suppress(OSError, AttributeError):
        file = open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - stays open
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def _make_console(worker: Worker) -> DebugConsole:
    """The Python prompt that SIGUSR2 opens, with the names a person needs first."""
    loop = worker.session_loop
    names = {"worker": worker, "session_loop": loop, "run_queue": worker.run_queue, "bot": loop.status.bot}
    return DebugConsole(worker.folder, names)


def _on_supervisor_death(number: int, _: object) -> None:
    """The supervisor was killed: kill all commands and functions, and exit."""
    processes.kept.clear()
    processes.kill_all_children(timeout_s=5.0)
    os._exit(128 + number)


class _PrivateFileHandler(logging.handlers.RotatingFileHandler):
    """A log that only the bot's user can read: users that commands run as may pass through the bot's folder."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def _set_up_logging(folder: str) -> None:
    to_file = _PrivateFileHandler(os.path.join(folder, "bot.log"), maxBytes=5 << 20, backupCount=3)
    to_screen = logging.StreamHandler()
    logging.basicConfig(
        level=logging.INFO, handlers=[to_file, to_screen], format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.raiseExceptions = False  # on a full disk the bot must go on to report that
