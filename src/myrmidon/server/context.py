"""The parts of a running server that every handler gets, and how they are opened at start.

No web framework here: tests call handlers with a ServerContext and a Call. A response leaves the server only after the
write that it reports is on disk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, StoreRefused
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.limits import Limits
from myrmidon.model.states import TaskState
from myrmidon.model.task_to_run import Order
from myrmidon.scheduler import resource_groups, servers
from myrmidon.scheduler.policy import Rules
from myrmidon.scheduler.priority import set_pool_order
from myrmidon.server.clock import SETTLE_WITH_DATABASE, Clock, wall_time
from myrmidon.server.config.config_folder import NO_CONFIG, FleetConfig, check_folder
from myrmidon.server.database import AsyncDatabase, Executor, SchedulingDatabase
from myrmidon.server.file_store import FileStore, open_file_store
from myrmidon.server.groups import GroupDirectory
from myrmidon.server.keys import Keys, open_keys
from myrmidon.server.large_documents import LargeDocuments
from myrmidon.server.metrics import Metrics
from myrmidon.server.quotas import Quotas, StorageQuotas
from myrmidon.server.settings import Settings, seconds
from myrmidon.server.waiting.event_feed import EventFeed
from myrmidon.server.waiting.wait_hub import WaitHub
from myrmidon.store.engine.db import Db, Dialect, open_db
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.engine.migrate import migrate
from myrmidon.store.tables import outbox, server_version, task_request
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.tables.schedulers import Scheduler
from myrmidon.store.views.pool_filter import PoolFilter


class ServerState(Struct):
    """What changes while a server runs. Losing it costs time, never data: a restart begins with the defaults."""

    started_at: Micros
    ready: bool = False
    """True once everything has been read that the first bot may ask for."""
    stopping: bool = False
    enrolled: bool = True
    """False when this server's slot went to another server: it must make no more ids."""
    num_calls: int = 0
    """Calls that are being answered, without long polls and streams, and without those whose body is arriving."""
    num_bodies: int = 0
    """Calls whose body is arriving."""
    clock_skew: Micros = 0
    """How far this server was ahead of the database at the last comparison; on SQLite: of the wall clock."""
    maintained_at: dict[str, Micros] = {}
    """When this server has last handled something of each kind of maintenance."""
    retention_waits_until: Micros | None = None
    """When the deletion of old tasks begins again after a gap in time; None without such a gap."""
    config: FleetConfig = NO_CONFIG
    """The active fleet configuration, the same for all servers on this database."""
    invalid_config: int = 0
    """The position of the active configuration if this server cannot parse it; otherwise 0."""
    offered_release: str = ""
    """The digest of this server's own bot zip."""
    offered_at: Micros = 0
    """When the offer was last written to the database."""


class Caches(Struct):
    """Results of queries that handlers share for a while."""

    cache_sizes: dict[tuple[str, str], dict[str, int]] = {}
    """The sizes of named caches, by pool and operating system."""
    dimension_counts: dict[tuple[str | None, PoolFilter | None], tuple[Micros, list[tuple[str, str, int]]]] = {}
    """Dimensions of the bots of a pool, or of all, and when they were counted."""


class ServerContext:
    """The parts of one server process. Each part does one thing; handlers use the ones they need."""

    def __init__(
        self,
        settings: Settings,
        db: Db,
        log_db: Db,
        *,
        keys: Keys,
        files: FileStore,
        server: Scheduler,
        ids: IdSource,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self.rules: Rules = settings.rules(keys.secret)
        self.limits: Limits = settings.limits()
        self.keys = keys
        self.files = files
        """Large values, and the code of functions."""
        self.server = server
        """This server's row among the servers on the database."""
        self.ids = ids
        self.clock = Clock(max_skew=self.rules.max_skew, settle=_settle(settings, db))
        self.now: Callable[[], Micros] = self.clock
        """The time of the server; nothing else reads a clock to decide something."""
        self.random_int: Callable[[int], int] = random.randrange
        """The only source of randomness: an integer from 0 to below the given one. Not for secrets."""
        self.metrics = metrics or Metrics()
        self.hub = WaitHub()
        executor = Executor(db, self.metrics.committed)
        log_executor = executor if log_db is db else Executor(log_db, self.metrics.committed)
        self.db = SchedulingDatabase(db, executor, self.metrics, self._publish)
        self.logs = AsyncDatabase(log_db, log_executor)
        """The database of the logs: on SQLite a file with its own writer, so that logs never delay scheduling."""
        self.events = EventFeed(self.db.read)
        self.hub.on_events = self.events.forget_reads
        self.groups = GroupDirectory(self.db, settings.default_group)
        self.quotas = Quotas(settings, self.db.read)
        self.storage_quotas = StorageQuotas(settings, self.db.read)
        self.large_documents = LargeDocuments()
        self.state = ServerState(started_at=self.now())
        self.more_chunked_work = asyncio.Event()
        """Set by calls that leave work to the background: it begins at once, not when it looks next."""
        self.caches = Caches()
        self.on_token_revoked: Callable[[int], None] = _ignore
        """Called with the id of a revoked token; the authenticator registers here to drop it from its cache."""
        self.on_group_deleted: Callable[[int], None] = _ignore
        """Called with the id of a deleted resource group; tokens bound to it are dropped from the cache."""

    def _publish(self, effects: CommitEffects) -> None:
        if expired := outbox.count(effects.events, TaskState.NO_RESOURCE):
            self.metrics.no_resource(expired)
        self.hub.notify_commit(effects)

    async def measure_skew(self) -> Micros:
        """Compare the clocks; returns how far this server's time is ahead of the reference (see Clock.compare)."""
        offset = None
        if self.db.engine.dialect is not Dialect.SQLITE:
            began = self.clock.boot()
            offset = self.clock.offset_of(await self.db.run_in_thread(self.db.engine.clock), began)
        self.state.clock_skew = self.now() - self.clock.compare(offset)
        return self.state.clock_skew

    def close(self) -> None:
        """Finish every write that waits, release the server's slot, close the databases."""
        self.db.executor.close()
        if self.logs.executor is not self.db.executor:
            self.logs.executor.close()
        self.files.close()
        engine, log_engine = self.db.engine, self.logs.engine
        try:
            engine.write(lambda tx: servers.unregister(tx, self.server))
        finally:
            engine.close()
            if log_engine is not engine:
                log_engine.close()


def _settle(settings: Settings, db: Db) -> Micros:
    """The time for which a step of the wall clock must last before the server follows it."""
    settle = seconds(settings.clock_settle_s)
    return settle if db.dialect is Dialect.SQLITE else min(settle, SETTLE_WITH_DATABASE)


def _ignore(_: int) -> None:
    """The default of a callback: nothing caches tokens yet."""


def named_groups(settings: Settings) -> list[str]:
    """The resource groups that the settings name: created at start, and never deleted."""
    return sorted({settings.default_group, *(entry.group for entry in settings.allow if entry.group)})


def open_context(settings: Settings, *, address: str, port: int) -> ServerContext:
    """Connect to the database, migrate it, take a server slot and create what a first start needs."""
    if settings.database_url.startswith("sqlite:"):
        settings.data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _migrate(settings)
    db = open_db(settings.database_url, durable=settings.durable)
    log_db = db
    try:
        if settings.log_database_url != settings.database_url:
            log_db = open_db(settings.log_database_url, durable=settings.durable, bulk=True)
        return _enroll(settings, db, log_db, address=address, port=port)
    except BaseException:
        for opened in {id(db): db, id(log_db): log_db}.values():
            opened.close()
        raise


def _migrate(settings: Settings) -> None:
    """Bring the tables up to date, on connections whose statements may take long."""
    for url, bulk in {settings.log_database_url: True, settings.database_url: False}.items():
        db = open_db(url, durable=settings.durable, role="tool", bulk=bulk)
        try:
            migrate(db, wall_time())
        finally:
            db.close()


def _enroll(settings: Settings, db: Db, log_db: Db, *, address: str, port: int) -> ServerContext:
    now = wall_time()
    if not db.read(configs.position) and (problems := check_folder(settings.config_folder)):
        # Later a bad edit leaves the version in force. At the first start there is none, and starting without one would
        # let bots and callers in that the folder was meant to keep out.
        raise InvalidRequest(problems)
    keys = open_keys(db, now)
    rules = settings.rules(keys.secret)
    skew = abs(db.clock() - wall_time())
    if skew > rules.max_skew:
        raise StoreRefused(f"This machine's clock is {skew / 1e6:.1f} s away from the database's; set it right.")
    db.write(partial(server_version.record, version=version("myrmidon")[:64], now=now))
    is_only_server = db.dialect is Dialect.SQLITE  # its file is locked: see store/engine/sqlite.py
    server = db.write(
        lambda tx: servers.register(tx, address[:40], port, now=now, is_only_server=is_only_server, rules=rules)
    )
    newest = db.read(task_request.newest)
    ids = IdSource(server.slot, max(server.id, newest))
    for name in named_groups(settings):
        db.write(partial(resource_groups.ensure_group, external_id=name, now=now, ids=ids))
    for pool, order in settings.pools.items():
        chosen = Order(order.task_order, seconds(order.ageing_s))
        db.write(partial(set_pool_order, pool=pool, order=chosen, now=now, ids=ids))
    files = open_file_store(settings.files_folder, db)
    return ServerContext(settings, db, log_db, keys=keys, files=files, server=server, ids=ids)
