"""What every test may ask for.

    db           a migrated, empty Db; the test runs once per database (ids sqlite, postgresql, mariadb)
    db_url       the same as a URL, for tests that open it themselves or several times
    new_db_url   a database without any table, once per database
    open_db      a way to open db_url, several times and with a probe; cheaper than opening it by its URL
    sqlite_db    a migrated, empty Db on SQLite only
    open_test_db the way to open any of these URLs, closed when the test ends
    clock, ids   virtual time and an IdSource

What runs is decided here, in ``_is_chosen``: the short suite, which covers each promise once, or all tests with
`--all`; `--soak` lets the tests marked `soak` run; `--databases sqlite,mariadb` leaves servers out. Only one migrated
database per worker and server exists: a test that changes its tables takes `new_db_url` instead.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import databases, servers, tracing

START = 1_767_225_600_000_000  # 2026-01-01, in Micros
ROOT = Path(__file__).parent
ON_EVERY_DATABASE = ("store", "scheduler", "plans", "races")
"""Folders with the statements and transactions that can differ between databases; marker `every_database` elsewhere."""
LONGEST_FIRST = ("sim", "ui", "functions", "native", "crash", "races", "bot", "cli", "executor", "relays", "graphs")
"""Folders whose files take a minute or more. They start first, so that the workers end at about the same time."""


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> int:
        """Let time pass (negative: the clock steps back); the new now."""
        self.now += round(seconds * 1_000_000)
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ids() -> Any:
    from myrmidon.model.ids import IdSource

    return IdSource(slot=1)


@pytest.fixture(params=databases.DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """The database a parametrised test runs on; skips, with the reason, where there is none."""
    kind: str = request.param
    if kind != "sqlite":
        _ensure_started(request.config, kind)
        try:
            databases.server_url(kind)
        except databases.Unavailable as why:
            pytest.skip(str(why))
    elif kind not in _wanted(request.config):
        pytest.skip("sqlite was left out of this run")
    return kind


@pytest.fixture
def db_url(dialect: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if dialect == "sqlite":
        files: databases.SqliteFiles = request.getfixturevalue("sqlite_files")
        url = files.migrated()
        yield url
        files.remove(url)
    else:
        yield request.getfixturevalue("server_databases")(dialect).emptied()


@pytest.fixture
def new_db_url(dialect: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if dialect == "sqlite":
        files: databases.SqliteFiles = request.getfixturevalue("sqlite_files")
        url = files.new()
        yield url
        files.remove(url)
    else:
        yield servers.new_database(databases.server_url(dialect))


@pytest.fixture
def open_test_db() -> Iterator[Callable[..., Any]]:
    """open_db with the options a test server needs; everything opened is closed when the test ends."""
    opened: list[Any] = []

    def open_one(url: str, **options: Any) -> Any:
        opened.append(databases.open_for_test(url, **options))
        return opened[-1]

    yield open_one
    for db in opened:
        db.close()


@pytest.fixture
def open_db(db_url: str, dialect: str, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A way to open db_url; on a server with connections that the tests before have used."""
    if dialect == "sqlite":
        return partial(databases.open_for_test, db_url)
    open_one: Callable[..., Any] = request.getfixturevalue("server_databases")(dialect).stock().open
    return open_one


@pytest.fixture
def db(open_db: Callable[..., Any]) -> Iterator[Any]:
    opened = open_db()
    yield opened
    opened.close()


@pytest.fixture
def sqlite_url(sqlite_files: databases.SqliteFiles) -> Iterator[str]:
    url = sqlite_files.migrated()
    yield url
    sqlite_files.remove(url)


@pytest.fixture
def sqlite_db(sqlite_url: str, open_test_db: Callable[..., Any]) -> Any:
    return open_test_db(sqlite_url)


@pytest.fixture(scope="session")
def sqlite_files() -> Iterator[databases.SqliteFiles]:
    folder = databases.scratch_folder()
    yield databases.SqliteFiles(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server_databases() -> Iterator[Callable[[str], databases.ServerDatabase]]:
    kept: dict[str, databases.ServerDatabase] = {}

    def of(kind: str) -> databases.ServerDatabase:
        if kind not in kept:
            kept[kind] = databases.ServerDatabase(databases.server_url(kind))
        return kept[kind]

    yield of
    for database in kept.values():
        database.close()


# --- The run as a whole: options, servers, coverage ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests, not only the short suite")
    parser.addoption("--soak", action="store_true", help="run the tests marked soak as well")
    parser.addoption(
        "--databases", default=",".join(databases.DIALECTS), help="comma-separated; the others are skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what runs in the background. Programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _forget_settings_of_the_shell()
    _generate_independently_of_speed(config)
    config.stash[SERVERS] = []
    config.stash[TRACER] = _tracer
    if _is_worker(config):
        _settle_down(config)
        return
    for kind in servers.KINDS:
        databases.forget(kind)
    if _has_workers(config):
        _start(config, [kind for kind in servers.KINDS if kind in _wanted(config)])


def _generate_independently_of_speed(config: pytest.Config) -> None:
    """Generated examples have no time limit, and are the same in each run; with --soak they are new ones."""
    derandomize = not config.getoption("--soak")
    hypothesis.settings.register_profile(
        "suite", deadline=None, derandomize=derandomize, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("suite")


def _forget_settings_of_the_shell() -> None:
    """A server or token that somebody has exported must not reach what the tests start."""
    kept = ("MYRMIDON_TEST_", "MYRMIDON_COVERAGE", "MYRMIDON_BENCH_DIR")
    for name in [name for name in os.environ if name.startswith("MYRMIDON_") and not name.startswith(kept)]:
        del os.environ[name]


def pytest_unconfigure(config: pytest.Config) -> None:
    for server in config.stash.get(SERVERS, []):
        server.stop()
    tracer = config.stash.get(TRACER, None)
    if tracer is not None:
        tracer.stop()
        tracer.save()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    database_of: dict[str, str] = {}
    for item in items:
        (chosen if _is_chosen(config, item, database_of) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(chosen, key=_place)


def _is_chosen(config: pytest.Config, item: pytest.Item, database_of: dict[str, str]) -> bool:
    """Whether a test runs: see the markers in pyproject.toml, and "Test" in CONTRIBUTING.md."""
    if item.get_closest_marker("soak"):
        return bool(config.getoption("--soak"))
    if config.getoption("--all") or config.getoption("--soak"):
        return True
    case = getattr(item, "callspec", None)
    marks = [mark.name for mark in (*(case.marks if case else ()), *item.iter_markers())]
    if next((name for name in marks if name in ("full", "short")), "short") == "full":
        return False
    dialect = case.params.get("dialect") if case else None
    everywhere = _folder(item) in ON_EVERY_DATABASE and not item.get_closest_marker("one_database")
    if dialect is None or everywhere or item.get_closest_marker("every_database"):
        return True
    if dialect not in _wanted(config):
        return False
    return database_of.setdefault(item.nodeid.replace(dialect, ""), dialect) == dialect


def _place(item: pytest.Item) -> int:
    folder = _folder(item)
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).parts[0]


def pytest_collection_finish() -> None:
    """What was collected is not garbage: looking through it again and again is a tenth of a simulated seed."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with tracing.during(item, item.config.stash.get(TRACER, None)):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A database that was not tested is said aloud, not only counted among the skipped."""
    for kind in servers.KINDS:
        if why := os.environ.get(f"MYRMIDON_TEST_NO_{kind.upper()}"):
            terminalreporter.write_line(f"NOT TESTED on {kind}: {why}", red=True, bold=True)


SERVERS = pytest.StashKey[list[servers.Server]]()
TRACER = pytest.StashKey[Any]()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _settle_down(config: pytest.Config) -> None:
    """Each worker, and all that its tests start, stays on one processor: see ``databases.stay_near``."""
    mine = sorted(os.sched_getaffinity(0))
    number = int(config.workerinput["workerid"].removeprefix("gw"))  # type: ignore[attr-defined]
    os.sched_setaffinity(0, {mine[number % len(mine)]})


def _has_workers(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "numprocesses", None)) and not config.option.collectonly


def _wanted(config: pytest.Config) -> list[str]:
    return [name.strip() for name in str(config.getoption("--databases")).split(",")]


def _ensure_started(config: pytest.Config, kind: str) -> None:
    """Without workers a server is started by the first test that asks for it."""
    if not _is_worker(config) and kind in _wanted(config) and not databases.announced(kind):
        _start(config, [kind])


def _start(config: pytest.Config, kinds: list[str]) -> None:
    reasons = servers.available()
    for kind in kinds:
        if why := reasons[kind]:
            databases.announce(kind, servers.CannotStart(why))
    for kind, server in servers.start_all([kind for kind in kinds if not reasons[kind]]).items():
        databases.announce(kind, server)
        if isinstance(server, servers.Server):
            config.stash[SERVERS].append(server)


# At once: a folder that is named on the command line has its own conftest read, with all that it imports, before
# anything is configured.
_tracer = tracing.start()
