"""The soldier: a process with a thread that runs commands, one that talks, and one that watches long commands."""

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
from typing import Any

from myrmidon.bot import system
from myrmidon.bot.bell import Bell
from myrmidon.bot.caches import Caches
from myrmidon.bot.command import Command, Watch
from myrmidon.bot.console import Console
from myrmidon.bot.duty import Duty
from myrmidon.bot.escort import Escort
from myrmidon.bot.journal import Journal
from myrmidon.bot.orders import Orders
from myrmidon.bot.runner import Runner
from myrmidon.bot.spool import Spool
from myrmidon.bot.surroundings import last_begun
from myrmidon.bot.talk import GOODBYE_S, Talk

_HUNG = 70
_ORPHAN = 71

log = logging.getLogger("myrmidon.bot")


class Soldier:
    """One bot in its folder. The main thread runs the commands."""

    def __init__(self, orders: Orders) -> None:
        self.folder = orders.folder
        spool = Spool(os.path.join(orders.folder, "spool"))
        caches = Caches(os.path.join(orders.folder, "c"))
        caches.adopt(os.path.join(orders.folder, "caches"))
        mark, _, value = os.fsdecode(system.mark_of(orders.folder)).partition("=")
        facts = {
            "MYRMIDON_BOT_ID": orders.bot_id,
            "MYRMIDON_SERVER": orders.server,
            "SWARMING_HEADLESS": "1",
            "SWARMING_BOT_ID": orders.bot_id,
            "SWARMING_SERVER": orders.server,
            mark: value,
        }
        self.journal = Journal(os.path.join(orders.folder, "journal"))
        self.spool = spool
        self.watch = Watch(spool, self._hung)
        begun = last_begun(orders.folder)
        self.runner = Runner(orders.folder, caches, self.watch, facts)
        self.duty = Duty(self.journal.earlier)
        self.talk = Talk(orders, self.duty, journal=self.journal, spool=spool, caches=caches, watch=self.watch)
        self.talk.begun = begun
        self.watch.on_output = self.talk.hear
        self.talk.standing.on_dimensions = self.runner.around.know
        self.escort = Escort(self.talk.standing, self.runner, self.duty)
        if caches.problem:
            self.talk.voice.complain(caches.problem)

    def serve(self) -> int:
        """Run commands until told to end; the exit code. A failure in here ends the process: the keeper starts anew."""
        self.watch.start()
        talking = threading.Thread(target=self.talk.run, name="talk", daemon=True)
        talking.start()
        duty, escort, hooks = self.duty, self.escort, self.talk.standing.hooks
        while True:
            task = duty.next_task()
            if task is None:
                break
            if hooks.lines:
                escort.before()
            record = self._execute(task)
            if record is None:
                self.spool.remove(task["run"])
            else:
                problem = record.pop("problem", None)
                if problem:
                    self.talk.voice.complain(problem)
                escort.complete(task, record)
                self.journal.add(record)
            duty.ran(task, record)
            self.talk.hear()
            if hooks.lines:
                escort.after(task, record)
            if escort.succeeded:
                self.talk.succeeded = True
        talking.join(GOODBYE_S)
        system.take_leave(self.folder)
        return duty.exit_code

    def _execute(self, task: dict[str, Any]) -> dict[str, Any] | None:
        """Whatever is wrong with the bot or with what it was sent, it costs one run and not the bot."""
        try:
            return self.runner.execute(task)
        except Exception as error:
            log.exception("a run failed")
            system.kill_all_children()
            report = {"type": "fault", "run": task["run"], "token": task["token"], "kind": "bot_error"}
            return {"report": {**report, "message": f"the bot failed: {error!r}"}, "logs": []}

    def signalled(self, _number: int, _: object) -> None:
        """Called by the system between any two steps of the main thread: notes the wish and wakes the talk.

        While the machine is asked to reboot, a signal means that it does: nothing is left to be said.
        """
        if self.duty.rebooting:
            os._exit(0)
        if self.duty.signalled() > 1 and self.watch.current is not None:
            self.watch.current.end("shutdown", 0.0)
        self.talk.wake()

    def _hung(self, command: Command) -> None:
        """A command that does not even die: the last ditch. The keeper kills what it can and starts a new bot."""
        report = {"type": "fault", "run": command.run, "token": command.token, "kind": "bot_error"}
        self.journal.add({"report": {**report, "message": "the command could not be killed"}, "logs": []})
        self.journal.sync()
        os._exit(_HUNG)


def serve(argv: list[str]) -> int:
    """The soldier's process, started by the keeper: soldier --dir DIR --ready FD --keeper PID."""
    given = dict(zip(argv[::2], argv[1::2]))
    _open_log(given["--dir"])
    system.become_reaper()
    system.hear_signals()
    signal.signal(signal.SIGHUP, _orphaned)
    system.signal_when_parent_dies(signal.SIGHUP)
    if os.getppid() != int(given["--keeper"]):
        return _ORPHAN  # it died before it could be watched
    sys.setswitchinterval(0.0005)  # the thread that runs must not wait long for the one that talks
    soldier = Soldier(Orders(given["--dir"]))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, soldier.signalled)
    _dump_on_demand(given["--dir"])
    Bell({signal.SIGUSR2: _console_of(soldier).open}).hang()
    os.write(int(given["--ready"]), b"1")
    os.close(int(given["--ready"]))
    gc.freeze()
    return soldier.serve()


def _dump_on_demand(folder: str) -> None:
    """SIGUSR1 writes to stacks.log where every thread is: for a bot that seems to hang."""
    path = os.path.join(folder, "stacks.log")
    with contextlib.suppress(OSError, AttributeError):
        file = open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - until the end
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def _console_of(soldier: Soldier) -> Console:
    """SIGUSR2 opens a prompt inside this process, for whoever wants to look closer."""
    names = {"soldier": soldier, "talk": soldier.talk, "duty": soldier.duty, "bot": soldier.talk.standing.bot}
    return Console(soldier.folder, names)


def _orphaned(number: int, _: object) -> None:
    """The keeper was killed: so is the bot, and everything it has started."""
    system.kill_all_children(patience=5.0)
    os._exit(128 + number)


def _open_log(folder: str) -> None:
    to_file = logging.handlers.RotatingFileHandler(os.path.join(folder, "bot.log"), maxBytes=5 << 20, backupCount=3)
    to_screen = logging.StreamHandler()
    logging.basicConfig(
        level=logging.INFO, handlers=[to_file, to_screen], format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.raiseExceptions = False  # a full disk must not stop the bot from saying so
