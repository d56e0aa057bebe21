"""Everything a bot says: handshakes, exchanges, signs of life, logs, orders. One thread, one connection.

Results are reported early and many at a time, and the next tasks are asked for before the present ones are used up,
as long as they are quick; of tasks that take long, only one is held. Nothing waits for the network but this thread.
Whatever goes wrong in it, it goes on: talking is how a bot is told to get better.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import traceback
from typing import Any

from myrmidon.bot import keeper, letters, system, updater
from myrmidon.bot.caches import Caches
from myrmidon.bot.command import INLINE, Watch
from myrmidon.bot.duty import AHEAD_S, Duty
from myrmidon.bot.errands import Errands
from myrmidon.bot.journal import Journal
from myrmidon.bot.letters import Letter
from myrmidon.bot.orders import Orders
from myrmidon.bot.spool import Spool
from myrmidon.bot.standing import Standing
from myrmidon.bot.voice import Voice
from myrmidon.bot.wire import Broken, Interrupted, Refused, Wire, pause_after

START_S = 0.2
REPORT_S = 3 * AHEAD_S
GIVE_BACK_S = 0.5
LOG_EVERY_S = 0.5
LOG_BYTES = 1 << 20
FEW_PIECES = 16
GOODBYE_S = 10.0
HURRY_S = 3.0
LEAVING_S = 0.5
HOPELESS = 2
SILENT_S = 2.0
LISTEN_S = 2.0
ILL_POLL_S = 5.0
MOST_TRIES = 5
NOT_MINE = (403, 404, 410)
UNREADABLE = (400, 413, 422)

log = logging.getLogger("myrmidon.bot")


class Talk:
    """``silent_s`` is how long the server had not answered before its last answer."""

    def __init__(
        self, orders: Orders, duty: Duty, *, journal: Journal, spool: Spool, caches: Caches, watch: Watch
    ) -> None:
        self.orders = orders
        self.duty = duty
        self.journal = journal
        self.spool = spool
        self.watch = watch
        self.started = system.awake()
        self.session = orders.next_session()
        self.version = updater.own_version()
        self.boot_id = system.boot_id()
        wake, self.waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.waker, False)
        self.wire = Wire(orders.server, orders.credential or orders.token, wake=wake)
        self.greeted = False
        self.good = updater.is_good(orders.folder)
        self.succeeded = False
        self.nonce = 0
        self.letter: Letter | None = None
        self.contact_at = system.awake()
        self.silent_s = 0.0
        self.log_sent_at = 0.0
        self.log_again_at = 0.0
        self.told_start = ""
        self.poll_s = 30.0
        self.heartbeat_s = 10.0
        self.active_at = system.awake()
        self.polling = False
        self.told_word: tuple[str | None, str | None] = (None, None)
        self.dry = False
        self.listening = False
        self.voice = Voice(self.wire, self.session)
        self.standing = Standing(
            orders, caches, session=self.session, version=self.version, tell=self.voice.tell, wake=self.wake
        )
        self.errands = Errands(orders, duty, self.standing, self.wire, self.voice)

    def wake(self) -> None:
        """Cut a wait for the server short. Takes no lock: it is called when a signal comes."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.waker, b".")

    # ---------------------------------------------------------------- never ends by itself

    def run(self) -> None:
        failures = 0
        try:
            self.standing.start()
        except Exception as error:
            log.exception("the start failed")
            self.voice.complain(f"{error!r}\n{traceback.format_exc()[-1500:]}")
        while not self.duty.over:
            pause = 0.0
            try:
                if not self.greeted:
                    self._shake_hands()
                self._say_next()
                failures = 0
                self.watch.server_away = False
            except Interrupted:
                pass
            except Refused as error:
                failures += 1
                pause = self._refused(error, failures)
            except Broken as error:
                failures += 1
                self.watch.server_away = failures > 1
                log.info("no answer: %s", error)
                pause = pause_after(failures)
            except Exception as error:
                failures += 1
                log.exception("the talk failed")
                self.voice.complain(f"{error!r}\n{traceback.format_exc()[-1500:]}")
                pause = pause_after(failures + 2)
            if failures:
                self._after_failure(pause, failures)

    def _after_failure(self, pause: float, failures: int) -> None:
        with contextlib.suppress(OSError):  # a full disk is told elsewhere
            self.journal.sync()
        if self._gives_up(failures):
            self.duty.end(self.duty.exit_code)
        if pause:
            self.duty.rest(min(pause, LEAVING_S) if self.duty.signals else pause)

    def _refused(self, error: Refused, failures: int) -> float:
        """What an error of the server means; how long to wait before the next call."""
        log.info("the server refused: %s", error)
        if error.status == 401:
            self.greeted = False
            known = [text for text in (self.orders.token, self.orders.credential) if text]
            self.wire.bearer = known[0] if self.wire.bearer != known[0] else known[-1]
            return pause_after(failures)
        if error.status == 409 and self.greeted:
            self.greeted = False
            return 0.0 if failures < 3 else pause_after(failures)
        if error.status == 409:
            log.error("this bot must end: %s", error)
            self._kill_current("lost", 0.0)
            self.duty.end(keeper.OUTDATED)
            return 0.0
        if error.passing:
            self.watch.server_away = error.status >= 500
            return pause_after(failures, error.retry_after)
        self.voice.complain(f"the server refused a call: {error}")
        if error.status in UNREADABLE and failures >= MOST_TRIES and self.letter is not None:
            self._throw_away(self.letter)
        return pause_after(failures + 2)

    def _throw_away(self, letter: Letter) -> None:
        """The server cannot read this letter, and never will: without it the bot could go on. Its runs end by lease."""
        self.letter = None
        done = [record["report"]["run"] for record in letter.records]
        self.duty.reported(len(done))
        self.journal.done(done)

    def _gives_up(self, failures: int) -> bool:
        """Told to end, and the server does not answer: the journal keeps the results that could not be said.

        For those the bot waits a little; for a mere goodbye it does not.
        """
        duty = self.duty
        if not duty.signals or duty.running is not None:
            return False
        return duty.since_signal() > GOODBYE_S or (failures >= HOPELESS and not duty.finished)

    # ---------------------------------------------------------------- the handshake

    def _shake_hands(self) -> None:
        orders, standing = self.orders, self.standing
        self.wire.send_along(standing.headers)
        word = standing.word()
        body: dict[str, Any] = {
            "bot_id": orders.bot_id,
            "session": self.session,
            **standing.hello(),
            "version": self.version,
            "boot_id": self.boot_id,
            "holds": [task["run"] for task in self.duty.held()] + list(self.journal.open_runs),
        }
        answer = self.wire.post("/bot/v1/handshake", body)
        self.told_word = word
        orders.keep_credential(answer["credential"])
        self.wire.bearer = answer["credential"]
        self.poll_s = float(answer.get("poll_s", self.poll_s))
        self.heartbeat_s = float(answer.get("heartbeat_s", self.heartbeat_s))
        standing.welcome(answer)
        self.greeted = True
        self._touch()
        log.info("shook hands as %s, session %d", orders.bot_id, self.session)
        if self.duty.forget_all_but(set(answer.get("keep", []))):
            self._kill_current("lost", 0.0)
        failed = updater.take_failure(orders.folder)
        if failed:
            self.voice.complain(f"the update to {failed[0]} failed: {failed[1]}", failed[0])
        self._deliver_old_logs()

    def _deliver_old_logs(self) -> None:
        """What an earlier process of this bot could not deliver any more; its results follow from the journal."""
        mine = {task["run"] for task in self.duty.held()}
        for run in self.spool.left():
            if run not in mine:
                self._send_log(run)
                if run not in self.journal.open_runs:
                    self.spool.remove(run)

    # ---------------------------------------------------------------- what to say next

    def _say_next(self) -> None:
        duty = self.duty
        self._look_around()
        running, waiting = duty.at_hand()  # before the logs: of what has ended by now, each goes up before its result
        self._complete_logs()
        self.voice.say_waiting()
        self.errands.take_wish()
        if duty.signals:
            self._wind_down()
        now = system.awake()
        if duty.over or (running is not None and duty.running is not running):
            return
        if self.letter is not None:
            self._exchange(self.letter)
        elif running is None and not waiting:
            self._say_idle()
        elif running is not None and now - running["begun"] > START_S:
            self._say_busy(running, now)
        elif self._may_claim() and not self.dry and waiting <= duty.low():
            self._write(duty.want())
        elif duty.finished and now - duty.finished_at > (AHEAD_S if self.dry else REPORT_S):
            self._write(0)
        else:
            duty.wait(AHEAD_S)

    def _say_idle(self) -> None:
        """Nothing to run: report, and wait at the server for more; unless there is an order to carry out.

        A result goes out together with the wait for more. Only if the line was silent for a while, and may be dead,
        is its answer asked for first: otherwise a lost result would be noticed a whole poll later.
        """
        self.dry = False
        news = bool(self.duty.finished or self.duty.refused)
        if not self._may_claim():
            if news:
                self._write(0)
            else:
                self._obey_at_last()
        elif news and system.awake() - self.contact_at > SILENT_S:
            self._write(0)
        else:
            self._poll()

    def _poll(self) -> None:
        """Wait at the server for work."""
        standing = self.standing
        hooks, bot = standing.hooks, standing.bot
        if hooks.has("on_before_poll"):
            hooks.call("on_before_poll", bot)
        self.polling = True
        try:
            self._write(
                self.duty.want(), min(self.poll_s, ILL_POLL_S) if standing.ill else self.poll_s, news=standing.news()
            )
        finally:
            self.polling = False
        if hooks.has("on_bot_idle") and not self.duty.queue and self.duty.running is None and not self.errands.order:
            hooks.call("on_bot_idle", bot, round(system.awake() - self.active_at, 3))

    def _say_busy(self, running: dict[str, Any], now: float) -> None:
        """A command that takes its time: say that it has begun, pass on its log, show that the bot is alive."""
        run = running["run"]
        if self.duty.queue and now - running["begun"] > GIVE_BACK_S:
            self.duty.give_back()
        size = self.spool.waiting(run)
        if self.told_start != run:
            self.told_start = run
            self._write(0, start=running)
        elif self.duty.refused or self.duty.finished:
            self._write(0)
        elif size > INLINE and now >= self.log_again_at:
            self._send_log(run, most=FEW_PIECES)
        elif size and now - self.log_sent_at >= LOG_EVERY_S:
            self.log_sent_at = now
            self._write(0, logs_of=run)
        elif now - self.contact_at >= self.heartbeat_s:
            self._heartbeat()
        elif not size and now - max(self.log_sent_at, running["begun"]) > LISTEN_S:
            self._listen(run)
        else:
            until = self.contact_at + self.heartbeat_s
            if size > INLINE:
                until = min(until, self.log_again_at)
            self.duty.wait(min(LOG_EVERY_S / 2, max(0.01, until - now)))

    def _listen(self, run: str) -> None:
        """A command that runs long and says nothing: wait at the server, so that an order to stop comes at once.

        The end of the command, or a word of it, cuts the wait short; a letter that says nothing need not be repeated.
        """
        self.listening = True
        try:
            if self.duty.running is not None and not self.spool.waiting(run):
                self._write(0, self.heartbeat_s)
        except Interrupted:
            if self.letter is not None and not self.letter.body["reports"]:
                self.letter = None
        finally:
            self.listening = False

    def hear(self) -> None:
        """Something has happened that the server should know. Called by the other threads."""
        if self.listening:
            self.wake()

    def _may_claim(self) -> bool:
        return not (self.duty.signals or self.errands.order)

    # ---------------------------------------------------------------- exchanges

    def _write(
        self,
        n: int,
        wait_s: float = 0.0,
        *,
        start: dict[str, Any] | None = None,
        logs_of: str | None = None,
        news: dict[str, Any] | None = None,
    ) -> None:
        self.nonce += 1
        head: dict[str, Any] = {"session": self.session, "nonce": self.nonce, "n": n, "wait_s": wait_s}
        if self.standing.config is not None:
            head["config"] = self.standing.config
        if news:
            head.update(news)
        self.letter = letters.write(self.duty, self.spool, head, start=start, logs_of=logs_of)
        self._exchange(self.letter)

    def _exchange(self, letter: Letter) -> None:
        """Send the letter; on failure it is kept and goes out again as it is.

        The results in it are forced to the disk if the server does not answer for them at once.
        """
        if not self._may_claim():
            letter.only_report()
        letter.sent += 1
        wait_s = letter.body["wait_s"]
        answer = self.wire.post("/bot/v1/exchange", letter.body, wait_s=wait_s, meanwhile=self.journal.sync)
        self.letter = None
        self._touch()
        self._settle(letter, answer)
        if self.polling and self.standing.hooks.has("on_after_poll"):
            self._after_poll(answer)
        self._take(letter, answer.get("tasks") or [], more=bool(answer.get("more", True)))
        self._obey(answer)
        if not self.good:
            self._prove_zip()

    def _after_poll(self, answer: dict[str, Any]) -> None:
        """Before a task of this answer begins: what a hook starts must not meet a command."""
        order = answer.get("order") or ("run" if answer.get("tasks") else "sleep")
        self.standing.hooks.call("on_after_poll", self.standing.bot, order)

    def _prove_zip(self) -> None:
        """Has this zip done enough to be the one to return to? Asked until it has; a full disk puts it off."""
        folder, alive_s = self.orders.folder, system.awake() - self.started
        if updater.is_proved(folder, alive_s, succeeded=self.succeeded):
            with contextlib.suppress(OSError):
                updater.mark_good(folder)
                self.good = True

    def _settle(self, letter: Letter, answer: dict[str, Any]) -> None:
        """What the server has answered for is done, however it took it; a run that is not ours any more is stopped."""
        for report, reply in zip(letter.body["reports"], answer.get("replies") or []):
            if report["type"] == "start" and reply.get("stop"):
                self._stop_run(report["run"], "killed" if reply.get("outcome") in ("accepted", "repeated") else "lost")
        done = [record["report"]["run"] for record in letter.records]
        if done:
            self.duty.reported(len(done))
            self.journal.done(done)
            for run in done:
                self.spool.remove(run)
        for run, stream, upto in letter.spooled:
            self.spool.delivered(run, stream, upto)
        for piece, length in zip(letter.body["logs"], answer.get("log_lengths") or []):
            if length < 0:
                self._drop_log(piece["run"])

    def _take(self, letter: Letter, tasks: list[dict[str, Any]], *, more: bool = True) -> None:
        """Queue what was claimed, with the earliest time at which that can have been.

        The queue is dry when the server says that there is no more; asking while the last task runs would be in vain.
        """
        known = {task["run"] for task in self.duty.held()} | set(self.journal.open_runs)
        fresh = [task for task in tasks if task["run"] not in known]
        for task in fresh:
            task["claimed_at"] = letter.written_at if letter.sent > 1 else self.wire.awake_at
        self.dry = bool(letter.body["n"]) and not (fresh and more)
        if fresh and any("terminate" in task and task["terminate"] for task in fresh):
            fresh = self._part(fresh)
        if fresh:
            self.active_at = system.awake()
            self.duty.add(fresh)

    def _part(self, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take the task that says: end. What came along with it goes back, when it is this bot's to do so."""
        for task in fresh:
            if task.get("terminate"):
                self.errands.take_last(task)
        self.duty.refuse([task for task in fresh if not task.get("terminate")])
        return []

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
            self._kill_current(why, 0.0 if why == "lost" or expired else None)

    def _kill_current(self, why: str, grace: float | None) -> None:
        command = self.watch.current
        if command is not None:
            log.info("ending %s: %s", command.run, why)
            command.end(why, grace)

    def _heartbeat(self) -> None:
        body: dict[str, Any] = {"session": self.session}
        body["holds"] = [[task["run"], task["token"]] for task in self.duty.held()]
        if self.standing.config is not None:
            body["config"] = self.standing.config
        answer = self.wire.post("/bot/v1/heartbeat", body)
        self._touch()
        self._obey(answer)

    def _touch(self) -> None:
        now = system.awake()
        self.silent_s = now - self.contact_at
        self.contact_at = now

    # ---------------------------------------------------------------- logs

    def _complete_logs(self) -> None:
        """The log of a finished run goes up before its result."""
        if self.spool.tokens:
            for run in [record["report"]["run"] for record in list(self.duty.finished)]:
                if run in self.spool.tokens:
                    self._send_log(run)
                    self.spool.remove(run)

    def _send_log(self, run: str, most: int = 1 << 30) -> None:
        """Send what the spool has of a run, in order, until all is sent or ``most`` pieces of each stream are.

        A server with better things to do asks for a pause; the log of a command that has ended does not wait for it.
        """
        token = self.spool.tokens.get(run, "")
        for stream in (0, 1):
            for _ in range(most):
                at, data = self.spool.read(run, stream, LOG_BYTES)
                if not data:
                    break
                try:
                    pause = self._send_piece(f"/bot/v1/log/{run}/{stream}?offset={at}", data, token)
                except Refused as error:
                    if error.status not in NOT_MINE:
                        raise
                    self._drop_log(run)
                    return
                self.spool.delivered(run, stream, at + len(data))
                if self.duty.running is not None and system.awake() - self.contact_at >= self.heartbeat_s:
                    self._heartbeat()
                if pause and most <= FEW_PIECES:
                    self.log_again_at = system.awake() + pause
                    break
        self.log_sent_at = system.awake()

    def _send_piece(self, path: str, data: bytes, token: str) -> float:
        """How long the server asks to wait with the next one."""
        headers = f"X-Run-Token: {token}\r\n"
        answer = self.wire.call("POST", path, data, kind="application/octet-stream", headers=headers)
        return float(json.loads(answer).get("pause_s") or 0.0)

    def _drop_log(self, run: str) -> None:
        """The server does not take this log: nobody will ever read it."""
        command = self.watch.current
        if command is not None and command.run == run:
            command.unwanted = True
        self.spool.remove(run)

    # ---------------------------------------------------------------- orders, health, the end

    def _look_around(self) -> None:
        """While nothing runs: is this machine fit, and is it still what the server was told it is?"""
        if self.duty.running is not None or self.duty.queue:
            return
        standing = self.standing
        standing.look(system.awake())
        self.wire.send_along(standing.headers)
        older = standing.config is None and standing.has_news()
        if standing.word() != self.told_word or older:
            self._shake_hands()

    def _obey_at_last(self) -> None:
        """Nothing runs and all is delivered. A task that told the bot to end is reported before that is done."""
        record = self.errands.last_report()
        if record is None:
            self.errands.carry_out()
            return
        self.journal.add(record)
        self.duty.ended(record)

    def _wind_down(self) -> None:
        """A signal came: finish what runs, give back the rest, say goodbye."""
        duty = self.duty
        duty.give_back()
        self.wire.margin_s = min(self.wire.margin_s, HURRY_S)
        if duty.signals > 1:
            self._kill_current("shutdown", 0.0)
        if duty.running is None and not (duty.finished or duty.refused or self.letter):
            self.errands.say_goodbye("ended by a signal")
            duty.end(0)
