"""Everything a bot says: handshakes, exchanges, signs of life, logs, orders. One thread, one connection.

Results are reported early and many at a time, and the next tasks are asked for before the present ones are used up,
as long as they are quick; of tasks that take long, only one is held. Nothing waits for the network but this thread.
Whatever goes wrong in it, it goes on: talking is how a bot is told to get better.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from collections import deque
from typing import Any

from myrmidon.bot import dimensions, keeper, letters, system, updater
from myrmidon.bot.caches import Caches
from myrmidon.bot.command import INLINE, Watch
from myrmidon.bot.duty import AHEAD_S, Duty
from myrmidon.bot.journal import Journal
from myrmidon.bot.letters import Letter
from myrmidon.bot.orders import Orders
from myrmidon.bot.spool import Spool
from myrmidon.bot.wire import Broken, Interrupted, Refused, Wire, pause_after

START_S = 0.2
GIVE_BACK_S = 0.5
LOG_EVERY_S = 0.5
LOG_BYTES = 1 << 20
GOODBYE_S = 10.0
SILENT_S = 2.0
LISTEN_S = 2.0
COMPLAIN_S = 600.0
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
        self.caches = caches
        self.watch = watch
        self.started = time.time()
        self.session = orders.next_session()
        self.version = updater.own_version()
        self.boot_id = system.boot_id()
        wake, self.waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.waker, False)
        self.wire = Wire(orders.server, orders.credential or orders.token, wake=wake)
        self.greeted = False
        self.good = False
        self.nonce = 0
        self.letter: Letter | None = None
        self.contact_at = system.awake()
        self.silent_s = 0.0
        self.log_sent_at = 0.0
        self.told_start = ""
        self.poll_s = 30.0
        self.heartbeat_s = 10.0
        self.order: str | None = None
        self.wanted_version = ("", "")
        self.ill: str | None = None
        self.told_ill: str | None = None
        self.dry = False
        self.listening = False
        self.complaints: deque[str] = deque(maxlen=20)
        self.complained: dict[str, float] = {}

    def wake(self) -> None:
        """Cut a wait for the server short. Takes no lock: it is called when a signal comes."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.waker, b".")

    # ---------------------------------------------------------------- never ends by itself

    def run(self) -> None:
        failures = 0
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
                self.complain(f"{error!r}\n{traceback.format_exc()[-1500:]}")
                pause = pause_after(failures + 2)
            if failures:
                self._after_failure(pause)

    def _after_failure(self, pause: float) -> None:
        with contextlib.suppress(OSError):  # a full disk is told elsewhere
            self.journal.sync()
        if self._gives_up():
            self.duty.end(self.duty.exit_code)
        if pause:
            self.duty.rest(pause)

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
        self.complain(f"the server refused a call: {error}")
        if error.status in UNREADABLE and failures >= MOST_TRIES and self.letter is not None:
            self._throw_away(self.letter)
        return pause_after(failures + 2)

    def _throw_away(self, letter: Letter) -> None:
        """The server cannot read this letter, and never will: without it the bot could go on. Its runs end by lease."""
        self.letter = None
        done = [record["report"]["run"] for record in letter.records]
        self.duty.reported(len(done))
        self.journal.done(done)

    def _gives_up(self) -> bool:
        """Told to end, and the server does not answer: the journal keeps what could not be said."""
        duty = self.duty
        return bool(duty.signals) and duty.running is None and duty.since_signal() > GOODBYE_S

    # ---------------------------------------------------------------- the handshake

    def _shake_hands(self) -> None:
        orders = self.orders
        body: dict[str, Any] = {
            "bot_id": orders.bot_id,
            "session": self.session,
            "dimensions": dimensions.dimensions(orders.bot_id, orders.pool, orders.extra),
            "state": dimensions.state(orders.folder, self.started, self.caches.names()),
            "version": self.version,
            "boot_id": self.boot_id,
            "holds": [task["run"] for task in self.duty.held()] + list(self.journal.open_runs),
        }
        if self.ill:
            body["quarantined"] = self.ill
        answer = self.wire.post("/bot/v1/handshake", body)
        self.told_ill = body.get("quarantined")
        orders.keep_credential(answer["credential"])
        self.wire.bearer = answer["credential"]
        self.poll_s = float(answer.get("poll_s", self.poll_s))
        self.heartbeat_s = float(answer.get("heartbeat_s", self.heartbeat_s))
        self.greeted = True
        self._touch()
        log.info("shook hands as %s, session %d", orders.bot_id, self.session)
        if self.duty.forget_all_but(set(answer.get("keep", []))):
            self._kill_current("lost", 0.0)
        failed = updater.take_failure(orders.folder)
        if failed:
            self.complain(f"the update to {failed[0]} failed: {failed[1]}")
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
        self._check_health()
        self._complete_logs()
        while self.complaints:
            self._event("bot_error", self.complaints.popleft())
        if duty.signals:
            self._wind_down()
        running, waiting, now = duty.running, len(duty.queue), system.awake()
        if duty.over:
            return
        if self.letter is not None:
            self._exchange(self.letter)
        elif running is None and not waiting:
            self._say_idle()
        elif running is not None and now - running["begun"] > START_S:
            self._say_busy(running, now)
        elif self._may_claim() and not self.dry and waiting <= duty.low():
            self._write(duty.want())
        elif duty.finished and now - duty.finished_at > AHEAD_S:
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
                self._carry_out()
        elif news and system.awake() - self.contact_at > SILENT_S:
            self._write(0)
        else:
            self._write(self.duty.want(), min(self.poll_s, 5.0) if self.ill else self.poll_s)

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
        elif size > INLINE:
            self._send_log(run, most=16)
        elif size and now - self.log_sent_at >= LOG_EVERY_S:
            self.log_sent_at = now
            self._write(0, logs_of=run)
        elif now - self.contact_at >= self.heartbeat_s:
            self._heartbeat()
        elif not size and now - max(self.log_sent_at, running["begun"]) > LISTEN_S:
            self._listen(run)
        else:
            self.duty.wait(min(LOG_EVERY_S / 2, max(0.01, self.contact_at + self.heartbeat_s - now)))

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
        return not (self.duty.signals or self.order)

    # ---------------------------------------------------------------- exchanges

    def _write(
        self, n: int, wait_s: float = 0.0, *, start: dict[str, Any] | None = None, logs_of: str | None = None
    ) -> None:
        self.nonce += 1
        head = {"session": self.session, "nonce": self.nonce, "n": n, "wait_s": wait_s}
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
        self._take(letter, answer.get("tasks") or [], more=bool(answer.get("more", True)))
        self._obey(answer)
        if not self.good:
            self.good = True
            updater.mark_good(self.orders.folder)

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
        if fresh:
            self.duty.add(fresh)

    def _obey(self, answer: dict[str, Any]) -> None:
        for run in answer.get("stop") or []:
            self._stop_run(run, "killed")
        order = answer.get("order")
        if order in ("update", "restart", "terminate"):
            log.info("ordered to %s", order)
            self.order = order
            self.wanted_version = (answer.get("version") or "", answer.get("zip_hmac") or "")
            self.duty.give_back()

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
        holds = [[task["run"], task["token"]] for task in self.duty.held()]
        answer = self.wire.post("/bot/v1/heartbeat", {"session": self.session, "holds": holds})
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
        """Send what the spool has of a run, in order, until all is sent or ``most`` pieces of each stream are."""
        token = self.spool.tokens.get(run, "")
        for stream in (0, 1):
            for _ in range(most):
                at, data = self.spool.read(run, stream, LOG_BYTES)
                if not data:
                    break
                try:
                    self._send_piece(f"/bot/v1/log/{run}/{stream}?offset={at}", data, token)
                except Refused as error:
                    if error.status not in NOT_MINE:
                        raise
                    self._drop_log(run)
                    return
                self.spool.delivered(run, stream, at + len(data))
                if self.duty.running is not None and system.awake() - self.contact_at >= self.heartbeat_s:
                    self._heartbeat()
        self.log_sent_at = system.awake()

    def _send_piece(self, path: str, data: bytes, token: str) -> None:
        headers = f"X-Run-Token: {token}\r\n"
        self.wire.call("POST", path, data, kind="application/octet-stream", headers=headers)

    def _drop_log(self, run: str) -> None:
        """The server does not take this log: nobody will ever read it."""
        command = self.watch.current
        if command is not None and command.run == run:
            command.unwanted = True
        self.spool.remove(run)

    # ---------------------------------------------------------------- orders, health, the end

    def _check_health(self) -> None:
        """Short of disk, the oldest caches go; if that does not help, the bot says that it is ill until it is well."""
        if self.duty.running is not None or self.duty.queue:
            return
        free, total = system.free_disk(self.orders.folder)
        while free < system.required_disk(total) and self.caches.trim(short_of_disk=True):
            free, total = system.free_disk(self.orders.folder)
        short = free < system.required_disk(total)
        self.ill = f"the disk of the bot is full: {free >> 20} MiB are free" if short else None
        if bool(self.ill) != bool(self.told_ill):
            self._shake_hands()

    def _carry_out(self) -> None:
        """Everything is delivered and nothing runs: now is the time for an order."""
        order, self.order = self.order, None
        if order == "update":
            self._update(*self.wanted_version)
        elif order == "restart":
            self._event("bot_shutdown", "restarting as ordered")
            self.duty.end(keeper.AGAIN)
        elif order == "terminate":
            self._event("bot_shutdown", "ended as ordered")
            self.duty.end(0)

    def _update(self, version: str, signature: str) -> None:
        """Fetch, check and try the new zip; whatever is wrong with it, this one goes on."""
        if version == self.version:
            return
        try:
            zipped = self.wire.call("GET", f"/bot/v1/zip/{version}", wait_s=60.0)
            updater.check(zipped, version, signature, self.orders.credential)
            updater.install(self.orders.folder, zipped, version)
        except (updater.BadZip, OSError) as error:
            self.complain(f"the update to {version} failed: {error}")
            return
        self._event("bot_shutdown", f"updating to {version}")
        self.duty.end(keeper.AGAIN)

    def _wind_down(self) -> None:
        """A signal came: finish what runs, give back the rest, say goodbye."""
        duty = self.duty
        duty.give_back()
        if duty.signals > 1:
            self._kill_current("shutdown", 0.0)
        if duty.running is None and not (duty.finished or duty.refused or self.letter):
            self._event("bot_shutdown", "ended by a signal")
            duty.end(0)

    def _event(self, kind: str, message: str) -> None:
        """Tell the server something that it may miss."""
        log.info("%s: %s", kind, message)
        with contextlib.suppress(Broken, Refused, Interrupted):
            self.wire.post("/bot/v1/event", {"session": self.session, "kind": kind, "message": message[:4000]})

    def complain(self, message: str) -> None:
        """Tell the server of a trouble, the same one at most every ten minutes."""
        log.error("%s", message)
        now = system.awake()
        if now - self.complained.get(message[:80], -COMPLAIN_S) >= COMPLAIN_S:
            self.complained[message[:80]] = now
            self.complaints.append(message)
