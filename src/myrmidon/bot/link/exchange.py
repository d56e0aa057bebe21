"""Letters and their answers: what goes to the server in one call, and what its answer means for what runs here.

A letter that is not answered is kept and goes out again as it is. What the server has answered for is done, however it
took it. When a letter is written, and for how many tasks, is decided elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from myrmidon.bot.link import exchange_request
from myrmidon.bot.link.directives import Errands
from myrmidon.bot.link.exchange_request import Letter
from myrmidon.bot.link.http_client import Wire
from myrmidon.bot.machine.status import Standing
from myrmidon.bot.run.command import Watch
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.storage.log_spool import Spool
from myrmidon.bot.storage.result_journal import Journal
from myrmidon.bot.system import host

log = logging.getLogger("myrmidon.bot")


class Exchange:
    """``letter`` is the one that is not answered yet, ``answered`` counts the others.

    The server's last answer came at ``contact_at``, after it had been silent for ``silent_s``. ``dry``: it has nothing
    more to claim. ``polling``: the bot waits for work, and last got some at ``active_at``.
    """

    def __init__(
        self,
        session: int,
        wire: Wire,
        duty: Duty,
        standing: Standing,
        errands: Errands,
        *,
        journal: Journal,
        spool: Spool,
        watch: Watch,
        drop_log: Callable[[str], None],
    ) -> None:
        self.session = session
        self.wire = wire
        self.duty = duty
        self.standing = standing
        self.errands = errands
        self.journal = journal
        self.spool = spool
        self.watch = watch
        self.drop_log = drop_log
        self.nonce = 0
        self.answered = 0
        self.letter: Letter | None = None
        self.contact_at = self.active_at = host.awake()
        self.silent_s = 0.0
        self.dry = False
        self.polling = False

    # ---------------------------------------------------------------- out

    def write(
        self,
        n: int,
        wait_s: float = 0.0,
        *,
        start: dict[str, Any] | None = None,
        logs_of: str | None = None,
        news: dict[str, Any] | None = None,
        held: bool = True,
    ) -> None:
        """Write a letter that asks for n tasks, and send it."""
        self.nonce += 1
        head: dict[str, Any] = {"session": self.session, "nonce": self.nonce, "n": n, "wait_s": wait_s}
        if self.standing.config is not None:
            head["config"] = self.standing.config
        if news:
            head.update(news)
        self.letter = exchange_request.write(self.duty, self.spool, head, start=start, logs_of=logs_of, held=held)
        self.send(self.letter)

    def send(self, letter: Letter) -> None:
        """Send the letter; on failure it is kept and goes out again as it is.

        The results in it are forced to the disk if the server does not answer for them at once.
        """
        if not self.errands.may_claim():
            letter.only_report()
        letter.sent += 1
        wait_s = letter.body["wait_s"]
        answer = self.wire.post("/bot/v1/exchange", letter.body, wait_s=wait_s, meanwhile=self.journal.sync)
        self.letter = None
        self.answered += 1
        self.touch()
        self._settle(letter, answer)
        if self.polling and self.standing.hooks.has("on_after_poll"):
            self._after_poll(answer)
        self._take(letter, answer.get("tasks") or [], more=bool(answer.get("more", True)))
        self._obey(answer)

    def heartbeat(self) -> None:
        body: dict[str, Any] = {"session": self.session}
        body["holds"] = [[task["run"], task["token"]] for task in self.duty.held()]
        if self.standing.config is not None:
            body["config"] = self.standing.config
        answer = self.wire.post("/bot/v1/heartbeat", body)
        self.touch()
        self._obey(answer)

    def touch(self) -> None:
        """The server has answered."""
        now = host.awake()
        self.silent_s = now - self.contact_at
        self.contact_at = now

    def throw_away(self) -> None:
        """The server cannot read this letter, and never will: without it the bot can go on. Its runs end by lease."""
        letter, self.letter = self.letter, None
        if letter is not None:
            self._done(letter)

    # ---------------------------------------------------------------- what an answer means

    def _settle(self, letter: Letter, answer: dict[str, Any]) -> None:
        """What the server has answered for is done; a run that is not ours any more is stopped."""
        for report, reply in zip(letter.body["reports"], answer.get("replies") or []):
            if report["type"] == "start" and reply.get("stop"):
                self._stop_run(report["run"], "killed" if reply.get("outcome") in ("accepted", "repeated") else "lost")
        for run in self._done(letter):
            self.spool.remove(run)
        for run, stream, upto in letter.spooled:
            self.spool.delivered(run, stream, upto)
        for piece, length in zip(letter.body["logs"], answer.get("log_lengths") or []):
            if length < 0:
                self.drop_log(piece["run"])

    def _done(self, letter: Letter) -> list[str]:
        """Nothing in this letter is said again; the runs of its results."""
        done = [record["report"]["run"] for record in letter.records]
        if done:
            self.duty.reported(len(done))
            self.journal.done(done)
        return done

    def _after_poll(self, answer: dict[str, Any]) -> None:
        """Before a task of this answer begins: what a hook starts must not meet a command."""
        order = answer.get("order") or ("run" if answer.get("tasks") else "sleep")
        self.standing.hooks.call("on_after_poll", self.standing.bot, order)

    def _take(self, letter: Letter, tasks: list[dict[str, Any]], *, more: bool = True) -> None:
        """Queue what was claimed, with the earliest time at which that can have been.

        The queue is dry when the server says that there is no more; asking while the last task runs would be in vain.
        """
        known = {task["run"] for task in self.duty.held()} | set(self.journal.open_runs)
        fresh = [task for task in tasks if task["run"] not in known]
        for task in fresh:
            task["claimed_at"] = letter.written_at if letter.sent > 1 else self.wire.awake_at
        if letter.body["n"]:
            self.dry = not (fresh and more)
        if any("terminate" in task and task["terminate"] for task in fresh):
            self._part(fresh)
        elif fresh:
            self.active_at = host.awake()
            self.duty.add(fresh)

    def _part(self, fresh: list[dict[str, Any]]) -> None:
        """Take the task that says: end. What came along with it goes back, when it is this bot's to do so."""
        for task in fresh:
            if task.get("terminate"):
                self.errands.take_last(task)
        self.duty.refuse([task for task in fresh if not task.get("terminate")])

    def _obey(self, answer: dict[str, Any]) -> None:
        for run in answer.get("stop") or []:
            self._stop_run(run, "killed")
        if answer.get("order"):
            self.errands.take(answer)

    def _stop_run(self, run: str, why: str) -> None:
        """End a run; at once if it is lost, which it also is when the server has not heard of it for a whole lease."""
        if self.duty.withdraw(run):
            running = self.duty.running or {}
            expired = self.silent_s > float(running.get("lease_s") or 300)
            self.kill_current(why, 0.0 if why == "lost" or expired else None)

    def kill_current(self, why: str, grace: float | None) -> None:
        """End the command that runs, if there is one."""
        command = self.watch.current
        if command is not None:
            log.info("ending %s: %s", command.run, why)
            command.end(why, grace)
