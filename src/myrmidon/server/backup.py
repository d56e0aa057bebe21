"""Backups, and the move to another database.

A backup is a folder with two SQLite files, whatever the installation runs on: on SQLite they are copies of its own
two files, made while the server works; on a database server they are an export as of one moment. Restoring is the
same the other way round. Tokens and keys are part of it, so a backup is as secret as the installation.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct

from myrmidon.model.errors import StoreRefused
from myrmidon.model.ids import Micros
from myrmidon.scheduler import servers
from myrmidon.scheduler.policy import DEFAULT_RULES
from myrmidon.server.context import clock
from myrmidon.server.settings import Settings
from myrmidon.store.engine import sqlite
from myrmidon.store.engine.db import Db, open_db
from myrmidon.store.engine.migrate import migrate, shipped, verify
from myrmidon.store.engine.table_copy import CopiedTable, check_empty, copy
from myrmidon.store.tables import log as logs
from myrmidon.store.views import run_details

MAIN_FILE = "myrmidon.db"
LOG_FILE = "myrmidon.db-logs"
INFO_FILE = "backup.json"
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""The endings of what SQLite keeps for one file. A part that another file has left would be read into a new one."""


class BackupInfo(Struct, frozen=True):
    """What a backup says of itself."""

    version: str
    made_at: Micros
    database: str


# ---------------------------------------------------------------- backup


def backup(settings: Settings, folder: Path) -> BackupInfo:
    """Copy everything into a new folder; it appears under its name only when it is complete."""
    if folder.exists():
        raise StoreRefused(f"{folder} is there already. Give the backup a new folder.")
    url, log_url = map(_require_existing, (settings.database_url, settings.log_database_url))
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        # The logs come last: then no task of the copy lacks what it had written by then.
        for one, name, is_log in ((url, MAIN_FILE, False), (log_url, LOG_FILE, True)):
            _export(one, fresh / name, logs_only=is_log, durable=settings.durable)
        about = BackupInfo(version("myrmidon"), clock(), url.partition(":")[0])
        (fresh / INFO_FILE).write_bytes(msgspec.json.encode(about))
        for path in [*fresh.iterdir(), fresh]:
            _fsync(path)
        fresh.rename(folder)
        _fsync(folder.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return about


def _export(url: str, to: Path, *, logs_only: bool, durable: bool) -> None:
    if url.startswith("sqlite:"):
        sqlite.backup_file(url.removeprefix("sqlite:///"), to)
        return
    with tempfile.TemporaryDirectory(prefix="export-", dir=to.parent) as place:
        export = f"{place}/{to.name}"
        made = _open(f"sqlite:///{export}", durable=False, bulk=logs_only)
        with _open(url, durable=durable) as source, made as target:
            migrate(target, clock())
            copy(source, target, logs=logs_only)
            sqlite.backup_file(export, to)  # one file, without the others that SQLite keeps beside a working one


# ---------------------------------------------------------------- restore


def restore(settings: Settings, folder: Path, *, replace: bool = False) -> BackupInfo:
    """Put a backup in place. The server must be stopped; with ``replace``, what is there now is kept beside it."""
    about = _read_info(folder)
    for name in (MAIN_FILE, LOG_FILE):
        sqlite.check_file(folder / name)
    urls = (settings.database_url, settings.log_database_url)
    for path in (url.removeprefix("sqlite:///") for url in urls if url.startswith("sqlite:")):
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if len(set(urls)) == 2 and all(url.startswith("sqlite:") for url in urls):
        _restore_files(dict(zip(urls, (MAIN_FILE, LOG_FILE), strict=True)), folder, replace=replace)
        return about
    with ExitStack() as opened:
        main, log = (f"sqlite:///{_working_copy(opened, folder / name)}" for name in (MAIN_FILE, LOG_FILE))
        source = _open_both(opened, main, log)
        target = _open_both(opened, *urls, durable=settings.durable)
        for one in (*source, *target):  # the backup may be that of an earlier release
            migrate(one, clock())
        _copy_both(source, target)
    return about


def _read_info(folder: Path) -> BackupInfo:
    try:
        return msgspec.json.decode((folder / INFO_FILE).read_bytes(), type=BackupInfo)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreRefused(f"{folder} is not a backup: {INFO_FILE} cannot be read ({error}).") from error


def _working_copy(kept: ExitStack, path: Path) -> Path:
    """A copy to work on: opening a database writes beside it, and a backup is not to be touched."""
    place = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="myrmidon-restore-")))
    return Path(shutil.copy2(path, place / path.name))


def _restore_files(urls: dict[str, str], folder: Path, *, replace: bool) -> None:
    targets = {Path(url.removeprefix("sqlite:///")): folder / name for url, name in urls.items()}
    with ExitStack() as held:
        for target in targets:
            held.enter_context(sqlite.lock(str(target)))  # refused while a server has it; it need not be sound
        present = [target for target in targets if target.exists()]
        if present and not replace:
            raise StoreRefused(
                f"{present[0]} is there already. Say that it shall be replaced, or name another data folder."
            )
        copies = [(_stage_copy(held, source, target), target) for target, source in targets.items()]
        suffix = _new_suffix(targets)
        for fresh, target in copies:
            for part in SQLITE_SUFFIXES:  # each keeps its ending: whoever opens the old file finds what belongs to it
                if Path(f"{target}{part}").exists():
                    Path(f"{target}{part}").rename(f"{target}{suffix}{part}")
            fresh.rename(target)
            _fsync(target.parent)
        for target in targets:
            sqlite.check_file(target)


def _new_suffix(targets: Iterable[Path]) -> str:
    """For what is put aside: two restores within a second must not mix the parts of what they found."""
    suffix = at = f".before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    number = 1
    while any(Path(f"{target}{suffix}{part}").exists() for target in targets for part in SQLITE_SUFFIXES):
        number += 1
        suffix = f"{at}.{number}"
    return suffix


def _stage_copy(held: ExitStack, source: Path, target: Path) -> Path:
    """All of it beside its place before anything is moved: a full disk then leaves what there was."""
    fresh = target.with_name(f".{target.name}.restoring")
    held.callback(fresh.unlink, missing_ok=True)
    fresh.unlink(missing_ok=True)  # of an attempt that was killed
    sqlite.make_private(fresh)
    shutil.copyfile(source, fresh)
    _fsync(fresh)
    return fresh


# ---------------------------------------------------------------- the move


def copy_db(
    from_url: str, to_url: str, *, from_logs: str | None = None, to_logs: str | None = None, durable: bool = True
) -> dict[str, CopiedTable]:
    """Move an installation to another, empty database; how much each table had. No server may use either.

    ``from_logs`` and ``to_logs`` are what the setting ``log_database`` says on each side, if it says anything. The
    source is left as it is: until the new one has proved itself, it is the best backup.
    """
    with ExitStack() as opened:
        source = _open_both(opened, _require_existing(from_url), _logs_of(from_url, from_logs), durable=durable)
        for one in source:
            if len(verify(one)) == len(shipped()):
                raise StoreRefused("There is no installation in the source: it has none of the tables.")
            migrate(one, clock())
        _check_unused(source[0])
        if from_logs is None:
            _check_logs_found(*source)
        target = _open_both(opened, to_url, to_logs or logs.log_url(to_url), durable=durable)
        for one in target:
            migrate(one, clock())
        return _copy_both(source, target)


def _logs_of(url: str, log_url: str | None) -> str:
    """Where the logs of a source lie. Its own file, if it has none for them: then none were written."""
    if log_url is not None:
        return _require_existing(log_url)
    usual = logs.log_url(url)
    return usual if _exists(usual) else url


def _check_logs_found(db: Db, log_db: Db) -> None:
    """Logs that lie elsewhere must not be left behind without a word."""
    if db.read(run_details.any_output) and not log_db.read(lambda tx: logs.tasks_after(tx, 0, 1)):
        raise StoreRefused(
            "Runs of this installation have written output, but there are no logs beside its database. Where the"
            " setting log_database names another place, name it as --from-logs too."
        )


def _open_both(opened: ExitStack, url: str, log_url: str, *, durable: bool = True) -> tuple[Db, Db]:
    """A database and that of its logs, which may be the same."""
    db = opened.enter_context(_open(url, durable=durable))
    if log_url == url:
        return db, db
    return db, opened.enter_context(_open(log_url, durable=durable, bulk=True))


def _copy_both(source: tuple[Db, Db], target: tuple[Db, Db]) -> dict[str, CopiedTable]:
    """Both halves; nothing is copied unless there is room for both."""
    _check_unused(target[0])
    check_empty(target[0], logs=False)
    check_empty(target[1], logs=True)
    return copy(source[0], target[0], logs=False) | copy(source[1], target[1], logs=True)


def _exists(url: str) -> bool:
    """Opening an SQLite file makes it; the others say by themselves that there is nothing."""
    return not url.startswith("sqlite:") or Path(url.removeprefix("sqlite:///")).exists()


def _require_existing(url: str) -> str:
    if not _exists(url):
        raise StoreRefused(f"There is no database {url.removeprefix('sqlite:///')}. Look at how its path is written.")
    return url


def _check_unused(db: Db) -> None:
    """Whoever serves a database server's database has left its mark there a moment ago; on SQLite a lock tells."""
    alive = clock() - DEFAULT_RULES.slot_lease
    busy = [one for one in db.read(servers.list_servers) if one.heartbeat >= alive]
    if busy:
        at = ", ".join(f"{one.address}:{one.port}" for one in busy)
        raise StoreRefused(f"A server uses this database ({at}). Stop it and wait two minutes, or stop it gracefully.")


@contextmanager
def _open(url: str, *, durable: bool = True, bulk: bool = False) -> Iterator[Db]:
    db = open_db(url, durable=durable, bulk=bulk)
    try:
        yield db
    finally:
        db.close()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
