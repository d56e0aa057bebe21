"""What breaks in a storm. Each fault is a context: it breaks something on entry and repairs it on exit.

Two or three are in force at a time. Those that are repaired first are entered last: a server is started when its
database, its disk and its clock are good again, because a start under a wrong clock takes that time for the right one.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg
import pymysql

from tests import databases
from tests.chaos.site import FEW_FAULTS, Site, worker_of
from tests.functions.site import executors_of
from tests.live import LiveServer
from tests.server.test_full_disk import fill

DAY_S = 86_400
NETWORK = 0.3
LONGEST_S = 6.0
"""A fault lasts so long at most; a frozen server more than twice as long, which is longer than a lease."""


class Faults:
    """Breaks a site, a few things at a time. ``counts``: how often what was done; ``done``: when, for the evidence."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.done: list[tuple[float, str]] = []
        self._began = time.monotonic()
        ranked: list[tuple[int, float, Callable[[], AbstractContextManager[None]]]] = [
            (0, 3, self.kill_a_server),
            (0, 3, self.freeze_a_server),
            (0, 4, self.kill_of_a_bot),
            (0, 2, self.kill_an_executor),
            (1, 3, self.bad_network),
            (1, 2, self.wrong_clock_of_servers),
            (1, 1, self.wrong_clock_of_bots),
            (1, 2, self.full_disk),
        ]
        if site.database is not None:
            ranked.append((1, 3, self.kill_the_database))
        if site.broker is not None:
            ranked.append((1, 1, self.kill_the_broker))
        self._ranked = ranked

    def storm(self, seconds: float) -> None:
        """Break and repair until the time is over; then all is repaired."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count = self.chance.choice((1, 1, 2, 2, 3))
            chosen = {
                fault: rank
                for rank, _, fault in self.chance.choices(
                    self._ranked, [weight for _, weight, _ in self._ranked], k=count
                )
            }
            with ExitStack() as stack:
                for fault in sorted(chosen, key=lambda one: chosen[one]):
                    stack.enter_context(fault())
                self._wait(LONGEST_S)
            self.site.tend()
            self.site.release_bots()
            self._wait(4.0)
        for way in self.site.ways:
            way.calm()
        self.site.tend()

    def _wait(self, most_s: float) -> None:
        time.sleep(self.chance.uniform(0.1, most_s))

    def _note(self, what: str, detail: str = "") -> None:
        self.counts[what] += 1
        self.done.append((time.monotonic() - self._began, f"{what} {detail}".strip()))

    def _server(self) -> LiveServer | None:
        up = [server for server in self.site.servers if server not in self.site.down and alive(server)]
        return self.chance.choice(up) if up else None

    # -- processes ----------------------------------------------------------------------------------------------

    @contextmanager
    def kill_a_server(self) -> Iterator[None]:
        server = self._server()
        if server is None:
            yield
            return
        self.site.down.add(server)
        self._note("kill -9 of a server", str(server.port))
        server.kill()
        if self.chance.random() < 0.5:
            self.site.route()
        yield
        self.site.start_server(server)
        self.site.down.discard(server)
        self.site.route()

    @contextmanager
    def freeze_a_server(self) -> Iterator[None]:
        """SIGSTOP, in the middle of a transaction if one is seen within some tries."""
        server = self._server()
        if server is None:
            yield
            return
        in_transaction = False
        for _ in range(40):
            os.kill(server.pid, signal.SIGSTOP)
            in_transaction = _has_open_transaction(self.site.url)
            if in_transaction or self.site.database is None:
                break
            os.kill(server.pid, signal.SIGCONT)
            time.sleep(self.chance.uniform(0, 0.02))
        else:
            os.kill(server.pid, signal.SIGSTOP)
        self._note("freeze of a server" + (" in a transaction" if in_transaction else ""), str(server.port))
        if self.chance.random() < 0.5:
            self.site.down.add(server)
            self.site.route()
        self._wait(LONGEST_S * 2)
        try:
            yield
        finally:
            os.kill(server.pid, signal.SIGCONT)
            self.site.down.discard(server)
            self.site.route()

    @contextmanager
    def kill_of_a_bot(self) -> Iterator[None]:
        number = self.chance.randrange(len(self.site.bots))
        supervisor, worker = self.chance.choice(((True, False), (False, True), (True, True)))
        who = " and ".join(["supervisor"] * supervisor + ["worker"] * worker)
        self._note(f"kill -9 of a bot's {who}", f"bot{number + 1}")
        self.site.kill_bot(number, supervisor=supervisor, worker=worker)
        yield

    @contextmanager
    def kill_an_executor(self) -> Iterator[None]:
        bot = self.chance.choice(self.site.bots)
        running = executors_of(bot) if (bot.folder / "bot.pid").exists() and worker_of(bot) else []
        if running:
            self._note("kill -9 of an executor", bot.folder.name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(running), signal.SIGKILL)
        yield

    @contextmanager
    def kill_the_database(self) -> Iterator[None]:
        database = self.site.database
        assert database is not None
        self._note(f"kill -9 of {database.kind}")
        database.kill()
        yield
        database.start()

    @contextmanager
    def kill_the_broker(self) -> Iterator[None]:
        assert self.site.broker is not None
        self._note("kill -9 of rabbitmq")
        self.site.broker.kill()
        yield
        self.site.broker.start()

    # -- network, clocks, disks ---------------------------------------------------------------------------------

    @contextmanager
    def bad_network(self) -> Iterator[None]:
        """Calls are cut before and after they have arrived, arrive twice or late, or are never answered."""
        self._note("bad network")
        for way in self.site.ways:
            way.rate = NETWORK
        try:
            yield
        finally:
            for way in self.site.ways:
                way.rate = FEW_FAULTS
                way.let_out()

    @contextmanager
    def wrong_clock_of_servers(self) -> Iterator[None]:
        with self._wrong_clock(self.site.server_clock.set, "the servers"):
            yield

    @contextmanager
    def wrong_clock_of_bots(self) -> Iterator[None]:
        with self._wrong_clock(self.site.bot_clock.set, "the bots"):
            yield

    @contextmanager
    def _wrong_clock(self, set_to: Callable[..., None], whose: str) -> Iterator[None]:
        ahead_s = self.chance.choice((31 * DAY_S, 3600, 90, -90, -3600, -31 * DAY_S))
        self._note(f"wrong clock of {whose}", f"{ahead_s} s ahead")
        set_to(ahead_s=ahead_s)
        try:
            yield
        finally:
            set_to(ahead_s=0)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The disk of the servers or that of a bot is full; where there are no small disks, a limit of file sizes."""
        if not self.site.small_disks:
            with self._small_files():
                yield
            return
        disk = self.chance.choice(self.site.small_disks)
        self._note("full disk", disk.name)
        filler = disk / "filler"
        fill(filler)
        try:
            yield
        finally:
            filler.unlink()

    @contextmanager
    def _small_files(self) -> Iterator[None]:
        server = self._server()
        if server is None:
            yield
            return
        self._note("limit of file sizes of a server", str(server.port))
        before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            if alive(server):
                resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


def alive(server: LiveServer) -> bool:
    return server.process is not None and server.process.poll() is None


OPEN = {
    "postgresql": """
        SELECT backend_xid, xact_start FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
           AND xact_start IS NOT NULL AND state LIKE 'idle in transaction%'""",
    "mysql": "SELECT trx_id, trx_started FROM information_schema.innodb_trx WHERE trx_rows_modified > 0",
}


def _has_open_transaction(url: str) -> bool:
    """Whether a transaction is open now and still is a moment later: the one of the frozen server."""
    text = OPEN.get(url.partition(":")[0])
    if text is None:
        return False
    try:
        link: Any = databases.connect(url)
    except (psycopg.Error, pymysql.err.Error):
        return False
    try:
        before = set(link.rows(text))
        if not before:
            return False
        time.sleep(0.05)
        return bool(before & set(link.rows(text)))
    except (psycopg.Error, pymysql.err.Error):
        return False
    finally:
        with contextlib.suppress(psycopg.Error, pymysql.err.Error):
            link.close()


def evidence_of(done: list[tuple[float, str]], count: int = 12) -> list[str]:
    """The last faults."""
    return [f"{at:7.1f} s  {what}" for at, what in done[-count:]]
