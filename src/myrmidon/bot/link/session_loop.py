"""Everything a bot says, and when: handshakes, exchanges, signs of life, logs, orders. One thread, one connection.

Results are reported early and many at a time, and the next tasks are asked for before the present ones are used up,
as long as they are quick; of tasks that take long, only one is held. Nothing waits for the network but this thread.
Whatever goes wrong in it, it goes on: talking is how a bot is told to get better.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from typing import Any

from myrmidon.bot import supervisor
from myrmidon.bot.install import updater
from myrmidon.bot.install.startup_config import Orders
from myrmidon.bot.link.directives import Errands
from myrmidon.bot.link.event_reporter import Voice
from myrmidon.bot.link.exchange import Exchange
from myrmidon.bot.link.http_client import Broken, Interrupted, Refused, Wire, pause_after
from myrmidon.bot.link.log_uploader import FEW_PIECES, Parcels
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.machine.status import Standing
from myrmidon.bot.run.command import INLINE, Watch
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.storage.log_spool import Spool
from myrmidon.bot.storage.result_journal import Journal
from myrmidon.bot.system import host

START_S = 0.2
REPORT_S = 0.15
LAST_REPORT_S = 0.05
GIVE_BACK_S = 0.5
LOG_EVERY_S = 0.5
GOODBYE_S = 10.0
HURRY_S = 3.0
LEAVING_S = 0.5
HOPELESS = 2
SILENT_S = 2.0
LISTEN_S = 2.0
ILL_POLL_S = 5.0
MOST_TRIES = 5
UNREADABLE = (400, 413, 422)

log = logging.getLogger("myrmidon.bot")


class Talk:
    """``good``: its zip is the one to return to. ``succeeded``: this process has run a command well.

    ``begun`` are the tasks that an earlier process may have died of.
    """

    def __init__(
        self, orders: Orders, duty: Duty, *, journal: Journal, spool: Spool, caches: Caches, watch: Watch
    ) -> None:
        self.orders = orders
        self.duty = duty
        self.journal = journal
        self.spool = spool
        self.watch = watch
        self.started = host.awake()
        self.session = orders.next_session()
        self.version = updater.own_version()
        self.boot_id = host.boot_id()
        wake, self.waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.waker, False)
        self.wire = Wire(orders.server, orders.credential or orders.token, wake=wake)
        self.greeted = False
        self.good = updater.is_good(orders.folder)
        self.succeeded = False
        self.begun: list[str] = []
        self.told_start = ""
        self.poll_s = 30.0
        self.heartbeat_s = 10.0
        self.told_word: tuple[str | None, str | None] = (None, None)
        self.listening = False
        self.voice = Voice(self.wire, self.session)
        self.standing = Standing(
            orders, caches, session=self.session, version=self.version, tell=self.voice.tell, wake=self.wake
        )
        self.errands = Errands(orders, duty, self.standing, self.wire, self.voice)
        self.parcels = Parcels(self.wire, duty, journal=journal, spool=spool, watch=watch, between=self._beat)
        self.exchange = Exchange(
            self.session,
            self.wire,
            duty,
            self.standing,
            self.errands,
            journal=journal,
            spool=spool,
            watch=watch,
            drop_log=self.parcels.drop,
        )

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
            pause, answered = 0.0, self.exchange.answered
            try:
                if not self.greeted:
                    self._shake_hands()
                self._say_next()
                failures = 0
                self.watch.server_away = False
                if not self.good and self.exchange.answered > answered:
                    self._prove_zip()
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
            self.exchange.kill_current("lost", 0.0)
            self.duty.end(supervisor.OUTDATED)
            return 0.0
        if error.passing:
            self.watch.server_away = error.status >= 500
            return pause_after(failures, error.retry_after)
        self.voice.complain(f"the server refused a call: {error}")
        if error.status in UNREADABLE and failures >= MOST_TRIES:
            self.exchange.throw_away()
        return pause_after(failures + 2)

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
            "begun": self.begun,
        }
        answer = self.wire.post("/bot/v1/handshake", body)
        self.told_word = word
        orders.keep_credential(answer["credential"])
        self.wire.bearer = answer["credential"]
        self.poll_s = float(answer.get("poll_s", self.poll_s))
        self.heartbeat_s = float(answer.get("heartbeat_s", self.heartbeat_s))
        standing.welcome(answer)
        self.greeted = True
        self.exchange.touch()
        log.info("shook hands as %s, session %d", orders.bot_id, self.session)
        if self.duty.forget_all_but(set(answer.get("keep", []))):
            self.exchange.kill_current("lost", 0.0)
        failed = updater.take_failure(orders.folder)
        if failed:
            self.voice.complain(f"the update to {failed[0]} failed: {failed[1]}", failed[0])
        self.parcels.send_old()

    # ---------------------------------------------------------------- what to say next

    def _say_next(self) -> None:
        """While tasks are quick, the bot does not ask which of them must stop: they have ended before it could hear."""
        duty, exchange = self.duty, self.exchange
        self._look_around()
        running, waiting = duty.at_hand()  # before the logs: of what has ended by now, each goes up before its result
        self.parcels.send_ended()
        self.voice.say_waiting()
        self.errands.take_wish()
        if duty.signals:
            self._wind_down()
        now = host.awake()
        if duty.over or (running is not None and duty.running is not running):
            return
        if exchange.letter is not None:
            exchange.send(exchange.letter)
        elif running is None and not waiting:
            self._say_idle()
        elif running is not None and now - running["begun"] > START_S:
            self._say_busy(running, now)
        elif self.errands.may_claim() and not exchange.dry and waiting <= duty.low():
            exchange.write(duty.want(), held=False)
        elif duty.finished and now - duty.finished_at > (LAST_REPORT_S if exchange.dry else REPORT_S):
            exchange.write(0, held=False)
        else:
            duty.wait(LAST_REPORT_S)

    def _say_idle(self) -> None:
        """Nothing to run: report, and wait at the server for more; unless there is an order to carry out.

        A result goes out together with the wait for more. Only if the line was silent for a while, and may be dead,
        is its answer asked for first: otherwise a lost result would be noticed a whole poll later.
        """
        exchange = self.exchange
        exchange.dry = False
        news = bool(self.duty.finished or self.duty.refused)
        if not self.errands.may_claim():
            if news:
                exchange.write(0)
            else:
                self._obey_at_last()
        elif news and host.awake() - exchange.contact_at > SILENT_S:
            exchange.write(0)
        else:
            self._poll()

    def _poll(self) -> None:
        """Wait at the server for work."""
        standing, exchange = self.standing, self.exchange
        hooks, bot = standing.hooks, standing.bot
        if hooks.has("on_before_poll"):
            hooks.call("on_before_poll", bot)
        exchange.polling = True
        try:
            wait_s = min(self.poll_s, ILL_POLL_S) if standing.ill else self.poll_s
            exchange.write(self.duty.want(), wait_s, news=standing.news())
        finally:
            exchange.polling = False
        if hooks.has("on_bot_idle") and not self.duty.queue and self.duty.running is None and not self.errands.order:
            hooks.call("on_bot_idle", bot, round(host.awake() - exchange.active_at, 3))

    def _say_busy(self, running: dict[str, Any], now: float) -> None:
        """A command that takes its time: say that it has begun, pass on its log, show that the bot is alive."""
        run, exchange, parcels = running["run"], self.exchange, self.parcels
        if self.duty.queue and now - running["begun"] > GIVE_BACK_S:
            self.duty.give_back()
        size = self.spool.waiting(run)
        if self.told_start != run:
            self.told_start = run
            exchange.write(0, start=running)
        elif self.duty.refused or self.duty.finished:
            exchange.write(0)
        elif size > INLINE and now >= parcels.again_at:
            parcels.send(run, most=FEW_PIECES)
        elif size and now - parcels.sent_at >= LOG_EVERY_S:
            parcels.sent_at = now
            exchange.write(0, logs_of=run)
        elif now - exchange.contact_at >= self.heartbeat_s:
            exchange.heartbeat()
        elif not size and now - max(parcels.sent_at, running["begun"]) > LISTEN_S:
            self._listen(run)
        else:
            until = exchange.contact_at + self.heartbeat_s
            if size > INLINE:
                until = min(until, parcels.again_at)
            self.duty.wait(min(LOG_EVERY_S / 2, max(0.01, until - now)))

    def _listen(self, run: str) -> None:
        """A command that runs long and says nothing: wait at the server, so that an order to stop comes at once.

        The end of the command, or a word of it, cuts the wait short; a letter that says nothing need not be repeated.
        """
        exchange = self.exchange
        self.listening = True
        try:
            if self.duty.running is not None and not self.spool.waiting(run):
                exchange.write(0, self.heartbeat_s)
        except Interrupted:
            if exchange.letter is not None and not exchange.letter.body["reports"]:
                exchange.letter = None
        finally:
            self.listening = False

    def hear(self) -> None:
        """Something has happened that the server should know. Called by the other threads."""
        if self.listening:
            self.wake()

    def _beat(self) -> None:
        """A sign of life, if one is due while a command runs."""
        exchange = self.exchange
        if self.duty.running is not None and host.awake() - exchange.contact_at >= self.heartbeat_s:
            exchange.heartbeat()

    # ---------------------------------------------------------------- orders, health, the end

    def _look_around(self) -> None:
        """While nothing runs: is this machine fit, and is it still what the server was told it is?"""
        if self.duty.running is not None or self.duty.queue:
            return
        standing = self.standing
        standing.look(host.awake())
        self.wire.send_along(standing.headers)
        older = standing.config is None and standing.has_news()
        if standing.word() != self.told_word or older:
            self._shake_hands()

    def _prove_zip(self) -> None:
        """Has this zip done enough to be the one to return to? Asked until it has; a full disk puts it off."""
        folder, alive_s = self.orders.folder, host.awake() - self.started
        if updater.is_proved(folder, alive_s, succeeded=self.succeeded):
            with contextlib.suppress(OSError):
                updater.mark_good(folder)
                self.good = True

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
            self.exchange.kill_current("shutdown", 0.0)
        if duty.running is None and not (duty.finished or duty.refused or self.exchange.letter):
            self.errands.say_goodbye("ended by a signal", ended=True)
            duty.end(0)
