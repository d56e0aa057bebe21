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

from myrmidon.bot.debug_console import DebugConsole
from myrmidon.bot.install import exit_codes, startup_config
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link.file_transfers import FileTransfers
from myrmidon.bot.link.next_action import SHUTDOWN_S
from myrmidon.bot.link.session_loop import SessionLoop
from myrmidon.bot.machine.environment_cache import EnvironmentCache
from myrmidon.bot.machine.environment_offer import EnvironmentOffer
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.run.command import Command
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.environment import base_environment
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.run.task_context import last_started_tasks
from myrmidon.bot.run.task_hooks import TaskHooks
from myrmidon.bot.run.task_runner import TaskRunner
from myrmidon.bot.signals import SignalThread
from myrmidon.bot.slots.environment_build import Builder
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.records import fault_report
from myrmidon.bot.slots.slot_loop import SlotLoop
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import host, processes
from myrmidon.bot.system.interpreters import Interpreters
from myrmidon.bot.system.users import TaskUser
from myrmidon.functions.native_task import FOLDERS_VARIABLE

log = logging.getLogger("myrmidon.bot")


class Worker:
    """One bot in its folder: builds all parts and connects them."""

    def __init__(self, startup: StartupConfig) -> None:
        self.folder = startup.folder
        spool = LogSpool(os.path.join(startup.folder, "spool"))
        caches = NamedCaches(os.path.join(startup.folder, "c"))
        self.journal = ResultJournal(os.path.join(startup.folder, "journal"))
        self.spool = spool
        self.watcher = CommandWatcher(spool, self._on_unkillable)
        suspect_tasks = last_started_tasks(
            startup.folder
        )  # before the runner overwrites what an earlier process has left
        self.runner = _make_runner(startup, caches, self.watcher)
        self.run_queue = RunQueue(self.journal.recovered, startup.slots)
        self.session_loop = SessionLoop(
            startup, self.run_queue, journal=self.journal, spool=spool, caches=caches, watcher=self.watcher
        )
        self.journal.on_error = self.session_loop.reporter.report_error
        self.session_loop.suspect_tasks = suspect_tasks
        self.watcher.on_output = self.session_loop.notify_output
        self.session_loop.status.on_dimensions = self.runner.context.set_dimensions
        self.session_loop.status.isolation = self.runner.isolation.methods()
        self.task_hooks = TaskHooks(self.session_loop.status, self.runner, self.run_queue)
        self.slot_loop = self._make_slot_loop(startup)
        self.session_loop.status.on_refresh = self._refresh_isolation
        if caches.problem:
            self.session_loop.reporter.report_error(caches.problem)

    def _make_slot_loop(self, startup: StartupConfig) -> SlotLoop:
        session_loop = self.session_loop
        environments = _make_environments(startup)
        session_loop.status.environments = environments.offer
        launcher = _make_launcher(startup)
        transfers = FileTransfers(startup.server, lambda: session_loop.http.bearer, lambda: session_loop.http.extra)
        self.runner.store_file = transfers.store
        slot_loop = SlotLoop(
            self.run_queue,
            launcher,
            transfers,
            environments,
            journal=self.journal,
            spool=self.spool,
            server=startup.server,
            bot_id=startup.bot_id,
            report_error=session_loop.reporter.report_error,
        )
        slot_loop.on_results = session_loop.notify
        slot_loop.on_output = session_loop.notify_output
        slot_loop.on_success = session_loop.note_success
        slot_loop.usd_per_s = lambda: session_loop.status.usd_per_s
        slot_loop.server_unreachable = lambda: session_loop.link.unreachable
        return slot_loop

    def _refresh_isolation(self) -> None:
        self.runner.isolation.refresh()
        self.slot_loop.launcher.refresh()

    def run(self) -> int:
        """Run tasks until told to end; the exit code. An exception ends the process, and a new worker is started."""
        self.watcher.start()
        self.slot_loop.start()
        loop_thread = threading.Thread(target=self.session_loop.run, name="session", daemon=True)
        loop_thread.start()
        run_queue, task_hooks, hooks = self.run_queue, self.task_hooks, self.session_loop.status.hooks
        while True:
            task = run_queue.next_task()
            if task is None:
                break
            record = self._execute(task)
            if record is None:
                self.spool.remove(task["run"])
            else:
                self.journal.add(record)
            run_queue.finish_task(task, record)
            self.session_loop.notify()
            if hooks.functions:
                task_hooks.after_task(task, record)
            if task_hooks.succeeded:
                self.session_loop.task_succeeded = True
        loop_thread.join(SHUTDOWN_S)
        self.slot_loop.close()
        host.unregister_bot(self.folder)
        return run_queue.exit_code

    def _execute(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """Run one task; the record to report. An unexpected exception fails this run and not the bot."""
        try:
            if self.session_loop.status.hooks.functions:
                self.task_hooks.prepare()
            record = self.runner.execute(task)
            if record is not None:
                problem = record.pop("problem", None)
                if problem:
                    self.session_loop.reporter.report_error(problem)
                self.task_hooks.complete_record(task, record)
        except Exception as error:
            log.exception("run %s failed", task["run"])
            processes.kill_all_children()
            return {"report": fault_report(task, "bot_error", f"the bot failed: {error!r}"), "logs": []}
        return record

    def on_signal(self, _number: int, _: object) -> None:
        """Signal handler for SIGTERM and SIGINT: finish the task; on a second signal, kill it.

        During a requested reboot the signal means that the machine goes down: exit at once.
        """
        if self.run_queue.rebooting:
            os._exit(0)
        if self.run_queue.count_signal() > 1 and self.watcher.current is not None:
            self.watcher.current.request_end("shutdown", 0.0)
        self.session_loop.wake()

    def _on_unkillable(self, command: Command) -> None:
        """A command survives SIGKILL: record a fault and exit, so that the supervisor starts a new worker."""
        report = fault_report(command.task, "bot_error", "the command could not be killed")
        self.journal.add({"report": report, "logs": []})
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
    isolation = Isolation(startup.find_task_user())
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


def _make_runner(startup: StartupConfig, caches: NamedCaches, watcher: CommandWatcher) -> TaskRunner:
    """What runs commands: with their environment, and kept away from the bot as far as this machine can do that."""
    isolation = Isolation(startup.find_task_user())
    runner = TaskRunner(startup.folder, caches, watcher, _environment(startup, isolation.user), isolation)
    if startup.isolation != startup_config.OFF:
        writable, readable = runner.workdir.root, (runner.context.folder,)
        hidden = [*startup.hidden, startup.environments]
        isolation.use_landlock(startup.folder, writable=writable, readable=readable, hidden=hidden)
    return runner


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
