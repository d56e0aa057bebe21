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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct

from myrmidon.model.errors import StoreRefused
from myrmidon.model.ids import Micros
from myrmidon.scheduler import enroll
from myrmidon.scheduler.policy import DEFAULT_RULES
from myrmidon.server.door import clock
from myrmidon.server.settings import Settings
from myrmidon.store import log as logs
from myrmidon.store import sqlite
from myrmidon.store.copying import Copied, copy
from myrmidon.store.db import Db, open_db
from myrmidon.store.migrate import migrate

MAIN = "myrmidon.db"
LOGS = "myrmidon.db-logs"
ABOUT = "backup.json"
PARTS = ("", "-wal", "-shm", "-journal")
"""The endings of what SQLite keeps for one file. A part that another file has left would be read into a new one."""


class About(Struct, frozen=True):
    """What a backup says of itself."""

    version: str
    made_at: Micros
    database: str


# ---------------------------------------------------------------- backup


def backup(settings: Settings, folder: Path) -> About:
    """Copy everything into a new folder; it appears under its name only when it is complete."""
    if folder.exists():
        raise StoreRefused(f"{folder} is there already. Give the backup a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        url, log_url = settings.database_url, settings.log_database_url
        # The logs come last: then no task of the copy lacks what it had written by then.
        for one, name, is_log in ((url, MAIN, False), (log_url, LOGS, True)):
            _export(one, fresh / name, logs_only=is_log, durable=settings.durable)
        about = About(version("myrmidon"), clock(), url.partition(":")[0])
        (fresh / ABOUT).write_bytes(msgspec.json.encode(about))
        for path in [*fresh.iterdir(), fresh]:
            _to_disk(path)
        fresh.rename(folder)
        _to_disk(folder.parent)
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
        made = _opened(f"sqlite:///{export}", durable=False, bulk=logs_only)
        with _opened(url, durable=durable) as source, made as target:
            migrate(target, clock())
            copy(source, target, logs=logs_only)
            sqlite.backup_file(export, to)  # one file, without the others that SQLite keeps beside a working one


# ---------------------------------------------------------------- restore


def restore(settings: Settings, folder: Path, *, replace: bool = False) -> About:
    """Put a backup in place. The server must be stopped; with ``replace``, what is there now is kept beside it."""
    about = _read_about(folder)
    for name in (MAIN, LOGS):
        sqlite.check_file(folder / name)
    if settings.database_url.startswith("sqlite:"):
        _restore_files(settings, folder, replace=replace)
    else:
        with ExitStack() as kept:
            main, log = (
                kept.enter_context(_opened(f"sqlite:///{_copied(kept, folder / name)}")) for name in (MAIN, LOGS)
            )
            target = kept.enter_context(_opened(settings.database_url, durable=settings.durable))
            for one in (main, log, target):  # the backup may be that of an earlier release
                migrate(one, clock())
            _check_unused(target)
            copy(main, target, logs=False)
            copy(log, target, logs=True)
    return about


def _read_about(folder: Path) -> About:
    try:
        return msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreRefused(f"{folder} is not a backup: {ABOUT} cannot be read ({error}).") from error


def _copied(kept: ExitStack, path: Path) -> Path:
    """A copy to work on: opening a database writes beside it, and a backup is not to be touched."""
    place = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="myrmidon-restore-")))
    return Path(shutil.copy2(path, place / path.name))


def _restore_files(settings: Settings, folder: Path, *, replace: bool) -> None:
    urls = {settings.database_url: MAIN, settings.log_database_url: LOGS}
    targets = {Path(url.removeprefix("sqlite:///")): folder / name for url, name in urls.items()}
    with ExitStack() as held:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            held.enter_context(sqlite.lock(str(target)))  # refused while a server has it; it need not be sound
        present = [(target, part) for target in targets for part in PARTS if Path(f"{target}{part}").exists()]
        if present and not replace:
            raise StoreRefused(
                f"{''.join(map(str, present[0]))} is there already. Say that it shall be replaced, or name another"
                " data folder."
            )
        copies = [(_fresh_copy(held, source, target), target) for target, source in targets.items()]
        suffix = f".before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        for target, part in present:  # the parts keep their endings: whoever opens the old file finds them
            Path(f"{target}{part}").rename(f"{target}{suffix}{part}")
        for fresh, target in copies:
            fresh.rename(target)
            _to_disk(target.parent)
        for target in targets:
            sqlite.check_file(target)


def _fresh_copy(held: ExitStack, source: Path, target: Path) -> Path:
    """All of it beside its place before anything is moved: a full disk then leaves what there was."""
    fresh = target.with_name(f".{target.name}.restoring")
    held.callback(fresh.unlink, missing_ok=True)
    shutil.copy2(source, fresh)
    fresh.chmod(0o600)
    _to_disk(fresh)
    return fresh


# ---------------------------------------------------------------- the move


def copy_db(from_url: str, to_url: str, *, durable: bool = True) -> dict[str, Copied]:
    """Move an installation to another, empty database; how much each table had. No server may use either.

    The source is left as it is: until the new one has proved itself, it is the best backup.
    """
    with ExitStack() as opened:
        source = opened.enter_context(_opened(from_url, durable=durable))
        source_logs = _logs_of(opened, from_url, source, durable=durable)
        target = opened.enter_context(_opened(to_url, durable=durable))
        target_logs = _logs_of(opened, to_url, target, durable=durable)
        for one in (source, target, target_logs):
            migrate(one, clock())
        for one in (source, target):
            _check_unused(one)
        done = copy(source, target, logs=False)
        return done | copy(source_logs, target_logs, logs=True)


def _logs_of(opened: ExitStack, url: str, db: Db, *, durable: bool) -> Db:
    log_url = logs.log_url(url)
    if log_url == url:
        return db
    log_db = opened.enter_context(_opened(log_url, durable=durable, bulk=True))
    migrate(log_db, clock())
    return log_db


def _check_unused(db: Db) -> None:
    """Whoever serves a database server's database has left its mark there a moment ago; on SQLite a lock tells."""
    alive = clock() - DEFAULT_RULES.slot_lease
    busy = [one for one in db.read(enroll.list_servers) if one.heartbeat >= alive]
    if busy:
        at = ", ".join(f"{one.address}:{one.port}" for one in busy)
        raise StoreRefused(f"A server uses this database ({at}). Stop it and wait two minutes, or stop it gracefully.")


@contextmanager
def _opened(url: str, *, durable: bool = True, bulk: bool = False) -> Iterator[Db]:
    db = open_db(url, durable=durable, bulk=bulk)
    try:
        yield db
    finally:
        db.close()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
