"""What the server or a hook has ordered besides tasks: update, restart, reboot, end. Carried out when nothing runs.

A bot ends what it runs, and delivers it, before it obeys: no order costs a task. An update that fails leaves the bot as
it is. A reboot that does not happen is asked for three times, and then the bot is of no use until a person has come.
"""

from __future__ import annotations

import logging
import os
import subprocess
from typing import Any

from myrmidon.bot import supervisor
from myrmidon.bot.install import updater
from myrmidon.bot.install.startup_config import Orders
from myrmidon.bot.link.event_reporter import Voice
from myrmidon.bot.link.http_client import PING, Broken, Interrupted, Refused, Wire
from myrmidon.bot.machine.status import Standing
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.system import host

ORDERS = ("update", "restart", "terminate")
REBOOT_S = float(os.environ.get("MYRMIDON_BOT_REBOOT_S") or 300.0)
MOST_REBOOTS = 3

log = logging.getLogger("myrmidon.bot")


class Errands:
    """``order`` is what is to be done next. ``parting`` is the task by which the server has told the bot to end."""

    def __init__(
        self,
        orders: Orders,
        duty: Duty,
        standing: Standing,
        wire: Wire,
        voice: Voice,
    ) -> None:
        self.orders = orders
        self.duty = duty
        self.standing = standing
        self.wire = wire
        self.voice = voice
        self.order: str | None = None
        self.why = ""
        self.wanted_version = ("", "")
        self.parting: dict[str, Any] | None = None

    def take(self, answer: dict[str, Any]) -> None:
        """An order of the server."""
        order = answer.get("order")
        if order in ORDERS:
            log.info("ordered to %s", order)
            self._note(order, "as ordered")
            self.wanted_version = (answer.get("version") or "", answer.get("zip_hmac") or "")

    def take_wish(self) -> None:
        """A wish of a hook."""
        if self.standing.wish is not None:
            (what, why), self.standing.wish = self.standing.wish, None
            log.info("a hook asks to %s: %s", what, why)
            self._note(what, why)

    def take_last(self, task: dict[str, Any]) -> None:
        """A task that only says: end."""
        log.info("told to end by the task %s", task["run"])
        self.parting = task
        self._note("terminate", "as ordered")

    def _note(self, order: str, why: str) -> None:
        self.order, self.why = order, why
        self.duty.give_back()

    def may_claim(self) -> bool:
        """Whether there is nothing that more tasks would put off."""
        return not (self.duty.signals or self.order)

    def last_report(self) -> dict[str, Any] | None:
        """The result of the task that says: end; given once, before that is done."""
        if self.order != "terminate" or self.parting is None:
            return None
        task, self.parting = self.parting, None
        report = {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": 0, "duration": 0.0}
        return {"report": {**report, "stdout_size": 0, "stderr_size": 0}, "logs": []}

    # ---------------------------------------------------------------- carrying out

    def carry_out(self) -> None:
        """Everything is delivered and nothing runs: now is the time."""
        order, self.order = self.order, None
        if order == "update":
            try:
                self._update(*self.wanted_version)
            except (Broken, Interrupted, Refused) as error:
                if not isinstance(error, Refused) or error.passing:
                    self.order = order  # the server would say it again in minutes only
                raise
        elif order == "restart":
            self.say_goodbye(f"restarting: {self.why}")
            self.duty.end(supervisor.AGAIN)
        elif order == "terminate":
            self.say_goodbye(f"ended: {self.why}", ended=True)
            self.duty.end(0)
        elif order == "reboot":
            self._reboot()

    def say_goodbye(self, message: str, *, ended: bool = False) -> None:
        """``ended``: nobody needs to wait for this bot's return."""
        self._last_words("bot_shutdown", message, ended=ended)

    def _last_words(self, kind: str, message: str, *, ended: bool = False) -> None:
        """The last hook, what is to be said of it, and then what is done."""
        self.standing.hooks.call("on_bot_shutdown", self.standing.bot)
        self.voice.say_waiting()
        self.voice.say(kind, message, ended=ended)

    def _update(self, version: str, signature: str) -> None:
        """Fetch, check and try the new zip; whatever is wrong with it, this one goes on."""
        if version == self.standing.bot.bot_version:
            return
        folder = self.orders.folder
        if updater.is_bad(folder, version):
            self.voice.complain(f"the update to {version} is put off: it was not fine when it was tried", version)
            return
        try:
            zipped = self.wire.call("GET", f"/bot/v1/zip/{version}", wait_s=60.0)
            updater.check(zipped, version, signature, self.orders.credential)
            updater.install(folder, zipped, version, self.orders.server)
        except updater.BadZip as error:
            bad = isinstance(error, updater.NotFine) or (isinstance(error, updater.Unheard) and self._is_heard())
            if bad:
                updater.note_bad(folder, version)
            self.voice.complain(f"the update to {version} failed: {error}", version if bad else "")
        except OSError as error:
            self.voice.complain(f"the update to {version} failed: {error}")
        else:
            self.say_goodbye(f"updating to {version}")
            self.duty.end(supervisor.AGAIN)

    def _is_heard(self) -> bool:
        """Whether the server answers this zip, if not the other one. Any answer will do."""
        try:
            self.wire.call("GET", PING)
        except Refused:
            return True
        except Broken:
            return False
        return True

    def _reboot(self) -> None:
        """Only the machine's end ends this well. A signal meanwhile ends the bot at once: the machine goes down."""
        why = self.why
        self._last_words("bot_rebooting", why)
        self.duty.rebooting = True
        for _ in range(MOST_REBOOTS):
            try:
                host.reboot()
            except (OSError, subprocess.SubprocessError) as error:
                self.voice.complain(f"the machine cannot be rebooted: {error}")
            self.duty.rest(REBOOT_S)
            if self.duty.over or self.duty.signals:
                return
        self.duty.rebooting = False
        self.standing.ills["reboot"] = f"the machine was asked to reboot and did not: {why}"[:300]
        self.voice.complain(self.standing.ills["reboot"])
