"""The door: what every handler gets, and the one way to the database that never blocks the event loop.

No web framework here: tests drive handlers with a Door and a Call, without HTTP. Nothing that a handler
returns leaves the server before the write it tells of is on disk.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound, StoreRefused, StoreUnavailable
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.task_to_run import Order
from myrmidon.model.validation import Limits
from myrmidon.scheduler import resource_groups, servers
from myrmidon.scheduler.policy import Rules
from myrmidon.scheduler.sweep import count_no_resource
from myrmidon.server.config.config_folder import NO_CONFIG, FleetConfig, check_folder
from myrmidon.server.keys import Keys, open_keys
from myrmidon.server.metrics import Metrics
from myrmidon.server.quotas import Quotas
from myrmidon.server.settings import Settings, seconds
from myrmidon.server.waiting.connected_bot import Notes, noted
from myrmidon.server.waiting.wait_hub import Hub
from myrmidon.store.engine.db import Db, Dialect, Tx, open_db
from myrmidon.store.engine.group_commit import GroupCommit
from myrmidon.store.engine.migrate import migrate
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.tables import task_request
from myrmidon.store.tables.schedulers import Scheduler
from myrmidon.store.views import run_details

T = TypeVar("T")

WRITER_THREADS = 16
"""As many as a database server gives us connections: more would only wait in another line."""
READER_THREADS = 4
PATIENCE_S = 20.0
"""How long a caller waits for the database."""
GROUP_KNOWN: Micros = 5_000_000
"""So long a resource group that was looked up is taken for the one of its name."""
MIB = 1 << 20


class Role(StrEnum):
    """What a caller is; the route table says what each may do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"
    BOOTSTRAP = "bot-bootstrap"
    BOT = "bot"
    NOBODY = "nobody"


ANYONE = frozenset(Role)
ADMINS = frozenset({Role.ADMIN})
WRITERS = frozenset({Role.ADMIN, Role.USER})
READERS = frozenset({Role.ADMIN, Role.USER, Role.VIEWER})
BOTS = frozenset({Role.BOT})
INTRODUCERS = frozenset({Role.ADMIN, Role.BOOTSTRAP})
"""Who may bring a new bot in."""


class Style(StrEnum):
    """How a route reads what it is sent and says what is wrong with it."""

    OURS = "ours"
    V1 = "swarming v1"
    """Tolerant: unknown keys, numbers as texts, null for nothing. Errors as Google's clients know them."""
    V1_OLD = "swarming v1, older prefix"


class Identity(Struct, frozen=True):
    """Who calls. ``group`` is the resource group it is bound to; None means all, or none for a bot.

    A token is bound to the group with this id, not to whichever has its name later.
    """

    name: str
    role: Role
    group: str | None = None
    bot_id: str | None = None
    group_id: int | None = None


NOBODY = Identity("nobody", Role.NOBODY)


class Call(Struct, kw_only=True):
    """One request, decoded. ``body`` and ``query`` are what the route asks for."""

    who: Identity
    body: Any = None
    body_size: int = 0
    """How many bytes it had, however it was sent."""
    query: Any = None
    params: dict[str, str] = {}
    request_key: str | None = None
    request_id: str = ""
    address: str = ""
    headers: Mapping[str, str] = {}


class Answer(Struct, kw_only=True):
    """A reply that is more than a struct: a status, headers, bytes or a stream of them."""

    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


Handler: TypeAlias = Callable[["ServerContext", Call], Awaitable[Any]]
"""Returns a struct, bytes, an async iterator of bytes (an event stream) or an Answer; raises MyrmidonError."""


class Route(Struct, frozen=True, kw_only=True):
    """One line of the route table; the router, the authorizer, OpenAPI and the route tests are made from it."""

    method: str
    path: str
    call: Handler
    who: frozenset[Role]
    summary: str
    body: Any = None
    """The struct that the body is decoded into; ``bytes`` for the raw body."""
    query: Any = None
    out: Any = None
    """The struct of the answer; None for bytes, text and streams, whose type ``media`` names."""
    mutates: bool = False
    body_limit: int = MIB
    media: str = "application/json"
    vital: bool = False
    """Answered even when the server is overloaded: heartbeats, and whatever tells of its health."""
    waits: bool = False
    """A long poll or a stream: not counted among the calls that keep the server busy."""
    quiet: bool = False
    """Called too often to be written to the log each time."""
    query_token: bool = False
    """The token may stand in the query as ``tok``, for commands that people paste."""
    asks_who: bool = False
    """Anybody may call, and who it is matters all the same."""
    style: Style = Style.OURS


class Memory(Struct):
    """What a server remembers from one look at the database to the next; losing it costs time, never truth."""

    unreadable: int = 0
    """The version of the settings folder that this server could not understand, if there is one."""
    hints: dict[tuple[str, str], dict[str, int]] = {}
    """How large named caches get, by pool and system."""
    counted: dict[str | None, tuple[Micros, list[tuple[str, str, int]]]] = {}
    """Dimensions of the bots of a pool, or of all, as they were last counted."""
    offers: str = ""
    """The digest of this server's own bot zip, and when it was last said in the database."""
    offered_at: Micros = 0


class ServerContext:
    """One per server process. SQLite's writes share commits; a database server's run in a bounded pool of threads."""

    def __init__(
        self,
        settings: Settings,
        db: Db,
        log_db: Db,
        *,
        keys: Keys,
        server: Scheduler,
        ids: IdSource,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self.db = db
        self.log_db = log_db
        self.keys = keys
        self.server = server
        self.ids = ids
        self.rules: Rules = settings.rules(keys.secret)
        self.limits: Limits = settings.limits()
        self.hub = Hub()
        self.metrics = metrics or Metrics()
        self.fleet: FleetConfig = NO_CONFIG
        """What the settings folder says, of all servers on this database."""
        self.memory = Memory()
        self.begun = False
        """True once everything is known that the first bot may ask for."""
        self.stopping = False
        self.calls_at_work = 0
        self.groups: dict[str, tuple[int, Micros]] = {}
        """Ids of resource groups by name, and until when they are believed: another server may delete one."""
        self.group_names: dict[int, str] = {}
        """The same the other way round; a group never changes its name."""
        self.now: Callable[[], Micros] = clock
        """The only clock of the server."""
        self.draw: Callable[[int], int] = random.randrange
        """Its only dice: a number from 0 to below the one given; nothing secret comes of it."""
        self.started_at: Micros = self.now()
        self.skew: Micros = 0
        """How far this clock was ahead of the database's when they were last compared."""
        self.enrolled = True
        """False when the slot went to another server: no more ids may be made here."""
        self.forget_token: Callable[[int], None] = _nothing
        """Told of a revoked token; whoever remembers tokens puts itself here."""
        self.forget_group: Callable[[int], None] = _nothing
        """Told of a deleted resource group, for the tokens that are bound to it."""
        self.quotas = Quotas(settings, self.read, self.now)
        self._desk = _desk(db, self.metrics.committed)
        self._log_desk = self._desk if log_db is db else _desk(log_db, self.metrics.committed)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        """Run fn in a transaction; returns when it is on disk and those who wait for it have been told."""
        writing = self.begin_write(fn)
        writing.add_done_callback(self._tell)
        return (await in_time(asyncio.shield(writing)))[0]

    def begin_write(self, fn: Callable[[Tx], T]) -> asyncio.Future[tuple[T, Notes]]:
        """As write, without waiting and without telling anybody: the notes say what there is to tell.

        It is carried out, and told, also when nobody waits for its result any more.
        """
        metrics, asked, noting = self.metrics, time.perf_counter(), noted(fn)

        def timed(tx: Tx) -> tuple[T, Notes]:
            metrics.wrote(time.perf_counter() - asked)
            return noting(tx)

        return asyncio.wrap_future(self._desk.write(timed))

    def _tell(self, writing: asyncio.Future[tuple[T, Notes]]) -> None:
        if not writing.cancelled() and writing.exception() is None:
            self.tell(writing.result()[1])

    def tell(self, notes: Notes) -> None:
        """Those who wait, and the metrics, hear of what was just committed."""
        if given_up := count_no_resource(notes.told):
            self.metrics.no_resource(given_up)
        self.hub.tell(notes)

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run fn on a reader."""
        return await in_time(asyncio.wrap_future(self._desk.read(fn)))

    async def write_log(self, fn: Callable[[Tx], T]) -> T:
        """As write, on the database of the logs: it has a writer of its own and holds up no scheduling."""
        return await in_time(asyncio.wrap_future(self._log_desk.write(fn)))

    async def read_log(self, fn: Callable[[Tx], T]) -> T:
        return await in_time(asyncio.wrap_future(self._log_desk.read(fn)))

    async def aside(self, fn: Callable[[], T]) -> T:
        """Run something that blocks, such as a sweep, on a thread."""
        return await asyncio.wrap_future(self._desk.threads.submit(fn))

    async def measure_skew(self) -> Micros:
        """Compare the clocks; sweeping and readiness depend on it."""
        before = self.now()
        theirs = await self.aside(self.db.clock)
        self.skew = (before + self.now()) // 2 - theirs
        return self.skew

    async def group_id(self, name: str) -> int:
        """The id of a resource group; NotFound when there is none of this name."""
        known, until = self.groups.get(name, (0, 0))
        if until > self.now():
            return known
        found = await self.read(lambda tx: resource_groups.get_group(tx, name))
        self.groups[name] = found.id, self.now() + GROUP_KNOWN
        return found.id

    async def group_of(self, call: Call, asked: str | None = None) -> int:
        """The resource group that a call works in: the one its token is bound to, the one it names, the default one."""
        name, bound = self.group_name(call, asked), call.who.group_id
        return await self.group_id(name) if bound is None else bound

    async def enter(self, call: Call, asked: str | None, fn: Callable[[int], Awaitable[T]]) -> T:
        """Do something in the group that a call works in; one that is gone is looked for once more, by its name."""
        name, known = self.group_name(call, asked), await self.group_of(call, asked)
        try:
            return await fn(known)
        except NotFound as gone:
            if gone.what != "resource group":
                raise
        self.groups.pop(name, None)
        found = await self.group_of(call, asked)
        if found == known:
            raise NotFound("resource group", name)
        return await fn(found)

    def group_name(self, call: Call, asked: str | None = None) -> str:
        bound = call.who.group
        if bound is not None and asked not in (None, bound):
            raise Forbidden(f"This token is bound to the resource group {bound}.")
        return bound or asked or self.settings.default_group

    async def scope(self, call: Call) -> int | None:
        """The only resource group whose things this caller sees; None for all."""
        return None if call.who.group is None else await self.group_of(call)

    def close(self) -> None:
        """Finish every write that waits, give the slot back, close the files."""
        self._desk.close()
        if self._log_desk is not self._desk:
            self._log_desk.close()
        try:
            self.db.write(lambda tx: servers.leave(tx, self.server))
        finally:
            self.db.close()
            if self.log_db is not self.db:
                self.log_db.close()


async def in_time(answer: asyncio.Future[T]) -> T:
    """Wait for the database, but not for ever: one that does not answer is as good as one that is away.

    A write may still be carried out afterwards: who repeats it with the same request key learns what came of it.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await answer
    except TimeoutError:
        raise StoreUnavailable(f"The database has not answered for {PATIENCE_S:.0f} s.") from None


def _nothing(_: int) -> None:
    """Nobody remembers tokens yet."""


def named_groups(settings: Settings) -> list[str]:
    """The resource groups that the settings name: they are there from the start, and stay."""
    return sorted({settings.default_group, *(one.group for one in settings.allow if one.group)})


def open_door(settings: Settings, *, address: str, port: int) -> ServerContext:
    """Connect, bring the tables up to date, take a slot, make what a first start has to make."""
    if settings.database_url.startswith("sqlite:"):
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    db = open_db(settings.database_url, durable=settings.durable)
    log_db = db
    try:
        if settings.log_database_url != settings.database_url:
            log_db = open_db(settings.log_database_url, durable=settings.durable, bulk=True)
        return _opened(settings, db, log_db, address=address, port=port)
    except BaseException:
        for opened in {id(db): db, id(log_db): log_db}.values():
            opened.close()
        raise


def _opened(settings: Settings, db: Db, log_db: Db, *, address: str, port: int) -> ServerContext:
    now = clock()
    for one in {id(db): db, id(log_db): log_db}.values():
        migrate(one, now)
    if not db.read(configs.position) and (problems := check_folder(settings.config_folder)):
        # Later a bad edit leaves what was in force; now nothing is, and bots and callers must not come in unasked.
        raise InvalidRequest(problems)
    keys = open_keys(db, now)
    rules = settings.rules(keys.secret)
    skew = abs(db.clock() - clock())
    if skew > rules.max_skew:
        raise StoreRefused(f"This machine's clock is {skew / 1e6:.1f} s away from the database's; set it right.")
    db.write(partial(run_details.note_version, version=version("myrmidon")[:64], now=now))
    server = db.write(lambda tx: servers.enroll(tx, address[:40], port, now=now, rules=rules))
    newest = db.read(task_request.newest)
    ids = IdSource(server.slot, max(server.id, newest))
    for name in named_groups(settings):
        db.write(partial(resource_groups.ensure_group, external_id=name, now=now, ids=ids))
    for pool, order in settings.pools.items():
        db.write(partial(servers.set_pool, pool=pool, order=Order(order.task_order, seconds(order.ageing_s))))
    return ServerContext(settings, db, log_db, keys=keys, server=server, ids=ids)


def clock() -> Micros:
    """The time by this machine; whoever has a door asks that one."""
    return time.time_ns() // 1000


# ---------------------------------------------------------------- desks


class Desk(Protocol):
    """The way to one database, for callers that must not wait."""

    threads: ThreadPoolExecutor

    def write(self, fn: Callable[[Tx], T]) -> Future[T]: ...
    def read(self, fn: Callable[[Tx], T]) -> Future[T]: ...
    def close(self) -> None: ...


class GroupDesk:
    """SQLite: one writer whose commits many writes share, a few readers beside it."""

    def __init__(self, db: Db, committed: Callable[[int], None]) -> None:
        self._db = db
        self._writer = GroupCommit(db, watch=committed)
        self.threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader")

    def write(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self._writer.submit(fn)

    def read(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self.threads.submit(self._db.read, fn)

    def close(self) -> None:
        self._writer.close()
        self.threads.shutdown()


class PooledDesk:
    """PostgreSQL and MariaDB: as many writes at once as there are connections."""

    def __init__(self, db: Db, committed: Callable[[int], None]) -> None:
        self._db = db
        self._committed = committed
        self.threads = ThreadPoolExecutor(WRITER_THREADS, thread_name_prefix="store")

    def write(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self.threads.submit(self._write, fn)

    def read(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self.threads.submit(self._db.read, fn)

    def close(self) -> None:
        self.threads.shutdown()

    def _write(self, fn: Callable[[Tx], T]) -> T:
        result = self._db.write(fn)
        self._committed(1)
        return result


def _desk(db: Db, committed: Callable[[int], None]) -> Desk:
    return GroupDesk(db, committed) if db.dialect is Dialect.SQLITE else PooledDesk(db, committed)
