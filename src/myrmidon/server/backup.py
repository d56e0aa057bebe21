"""Backs up, restores and copies the databases of an installation.

A backup is a folder with two SQLite files, whatever database the installation uses: on SQLite they are copies of its
own two files, on a database server each is an export of a consistent snapshot. Beside them is a copy of the folder of
the files, if that is on this machine. The server keeps running meanwhile. A backup contains tokens and keys, so it is
as secret as the installation itself.
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

from myrmidon.files.folder import FileFolder
from myrmidon.files.folder_copy import copy_files
from myrmidon.model.errors import StoreRefused
from myrmidon.model.ids import Micros
from myrmidon.scheduler import servers
from myrmidon.scheduler.policy import DEFAULT_RULES
from myrmidon.server.clock import wall_time
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
FILES_FOLDER = "files"
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""A database file and its companions. They move together: a companion of another database would corrupt a new one."""


class BackupInfo(Struct, frozen=True):
    """The content of backup.json: the version and kind of database that the backup was made of, and when.

    ``num_files`` is None if the folder of the files was not on this machine, or if an older version made the backup;
    ``damaged_files`` were not copied.
    """

    version: str
    made_at: Micros
    database: str
    num_files: int | None = None
    damaged_files: list[str] = []


# ---------------------------------------------------------------- backup


def backup(settings: Settings, folder: Path) -> BackupInfo:
    """Copy everything into a new folder, which gets its name only when it is complete and on disk."""
    if folder.exists():
        raise StoreRefused(f"{folder} exists already. Name a new folder for the backup.")
    url, log_url = map(_require_existing, (settings.database_url, settings.log_database_url))
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        # Logs last: then the copy has all output that the copied tasks had written.
        for source, name, is_log in ((url, MAIN_FILE, False), (log_url, LOG_FILE, True)):
            _export(source, fresh / name, logs_only=is_log, durable=settings.durable)
        # Files last: every file that the copied database refers to was there before.
        copied = _back_up_files(FileFolder(settings.files_folder), FileFolder(fresh / FILES_FOLDER))
        about = BackupInfo(version("myrmidon"), wall_time(), url.partition(":")[0], *copied)
        (fresh / INFO_FILE).write_bytes(msgspec.json.encode(about))
        for path in [*fresh.iterdir(), fresh]:
            _fsync(path)
        fresh.rename(folder)
        _fsync(folder.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return about


def _back_up_files(source: FileFolder, target: FileFolder) -> tuple[int | None, list[str]]:
    """The number of files that were copied, None if the folder is not on this machine; and which ones are damaged."""
    number = source.read_id()
    if number is None:
        return None, []
    target.claim(number)
    copied = copy_files(source, target)
    return copied.num_files, copied.damaged


def _export(url: str, to: Path, *, logs_only: bool, durable: bool) -> None:
    if url.startswith("sqlite:"):
        sqlite.backup_file(url.removeprefix("sqlite:///"), to)
        return
    with tempfile.TemporaryDirectory(prefix="export-", dir=to.parent) as folder:
        export = f"{folder}/{to.name}"
        opening = _open(f"sqlite:///{export}", durable=False, bulk=logs_only)
        with _open(url, durable=durable) as source, opening as target:
            migrate(target, wall_time())
            copy(source, target, logs=logs_only)
            sqlite.backup_file(export, to)  # a single file, without the companions of an open database


# ---------------------------------------------------------------- restore


def restore(settings: Settings, folder: Path, *, replace: bool = False) -> BackupInfo:
    """Restore a backup. The server must be stopped.

    Existing SQLite files are an error; with ``replace`` they are renamed. A database server's database must be empty.
    A folder with files of another installation is an error too; with ``replace`` it is renamed.
    """
    info = _read_info(folder)
    files, kept_files = FileFolder(folder / FILES_FOLDER), FileFolder(settings.files_folder)
    if _belongs_to_another(kept_files, files) and not replace:
        raise StoreRefused(
            f"{kept_files.root} has files of another installation. Use --replace to replace it (it is kept under"
            " another name), or --data-dir to restore to another data folder."
        )
    _restore_databases(settings, folder, replace=replace)
    _restore_files_folder(files, kept_files)
    return info


def _belongs_to_another(folder: FileFolder, backup: FileFolder) -> bool:
    return folder.read_id() not in (None, backup.read_id()) and not folder.is_empty()


def _restore_files_folder(source: FileFolder, target: FileFolder) -> None:
    """Add the files of a backup to the folder of the files; nothing if the backup has none."""
    number = source.read_id()
    if number is None:
        return
    if _belongs_to_another(target, source):
        target.root.rename(f"{target.root}{_new_suffix([target.root])}")
    target.claim(number)
    copy_files(source, target)


def _restore_databases(settings: Settings, folder: Path, *, replace: bool) -> None:
    for name in (MAIN_FILE, LOG_FILE):
        sqlite.check_file(folder / name)
    urls = (settings.database_url, settings.log_database_url)
    for path in (url.removeprefix("sqlite:///") for url in urls if url.startswith("sqlite:")):
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if len(set(urls)) == 2 and all(url.startswith("sqlite:") for url in urls):
        _restore_sqlite(dict(zip(urls, (MAIN_FILE, LOG_FILE), strict=True)), folder, replace=replace)
        return
    with ExitStack() as opened:
        main, log = (f"sqlite:///{_working_copy(opened, folder / name)}" for name in (MAIN_FILE, LOG_FILE))
        source = _open_both(opened, main, log)
        target = _open_both(opened, *urls, durable=settings.durable)
        for db in (*source, *target):  # the backup may be of an earlier version
            migrate(db, wall_time())
        _copy_both(source, target)


def _read_info(folder: Path) -> BackupInfo:
    try:
        return msgspec.json.decode((folder / INFO_FILE).read_bytes(), type=BackupInfo)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreRefused(f"{folder} is not a backup: {INFO_FILE} cannot be read ({error}).") from error


def _working_copy(stack: ExitStack, path: Path) -> Path:
    """A temporary copy: opening a database writes to its folder, and the backup must not change."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="myrmidon-restore-")))
    return Path(shutil.copy2(path, folder / path.name))


def _restore_sqlite(urls: dict[str, str], folder: Path, *, replace: bool) -> None:
    targets = {Path(url.removeprefix("sqlite:///")): folder / name for url, name in urls.items()}
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(sqlite.lock(str(target)))  # fails while a server uses it; the file may be damaged
        existing = [target for target in targets if target.exists()]
        if existing and not replace:
            raise StoreRefused(
                f"{existing[0]} exists already. Use --replace to replace it (it is kept under another name), or"
                " --data-dir to restore to another data folder."
            )
        copies = [(_stage_copy(stack, source, target), target) for target, source in targets.items()]
        kept_as = _new_suffix(targets)
        for staged, target in copies:
            for suffix in SQLITE_SUFFIXES:  # companions keep their suffix, so that the old database can still be opened
                if Path(f"{target}{suffix}").exists():
                    Path(f"{target}{suffix}").rename(f"{target}{kept_as}{suffix}")
            staged.rename(target)
            _fsync(target.parent)
        for target in targets:
            sqlite.check_file(target)


def _new_suffix(targets: Iterable[Path]) -> str:
    """An unused suffix for replaced files: two restores within a second must not mix their files."""
    with_time = f".before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    kept_as, number = with_time, 1
    while any(Path(f"{target}{kept_as}{suffix}").exists() for target in targets for suffix in SQLITE_SUFFIXES):
        number += 1
        kept_as = f"{with_time}.{number}"
    return kept_as


def _stage_copy(stack: ExitStack, source: Path, target: Path) -> Path:
    """Copy a file next to its target. All copies are made before any rename: a full disk then changes nothing."""
    staged = target.with_name(f".{target.name}.restoring")
    stack.callback(staged.unlink, missing_ok=True)
    staged.unlink(missing_ok=True)  # left by an attempt that was killed
    sqlite.make_private(staged)
    shutil.copyfile(source, staged)
    _fsync(staged)
    return staged


# ---------------------------------------------------------------- copy to another database


def copy_db(
    from_url: str, to_url: str, *, from_logs: str | None = None, to_logs: str | None = None, durable: bool = True
) -> dict[str, CopiedTable]:
    """Copy an installation to another, empty database; returns what was copied of each table.

    ``from_logs`` and ``to_logs`` are the values of the setting ``log_database`` on each side, if it is set. No server
    may use either database. The source is migrated to this version, but its data is not changed.
    """
    with ExitStack() as stack:
        source = _open_both(stack, _require_existing(from_url), _logs_of(from_url, from_logs), durable=durable)
        for db in source:
            if len(verify(db)) == len(shipped()):
                raise StoreRefused("There is no installation in the source database: it has no tables of Myrmidon.")
            migrate(db, wall_time())
        _check_unused(source[0])
        if from_logs is None:
            _check_logs_found(*source)
        target = _open_both(stack, to_url, to_logs or logs.log_url(to_url), durable=durable)
        for db in target:
            migrate(db, wall_time())
        return _copy_both(source, target)


def _logs_of(url: str, log_url: str | None) -> str:
    """The URL of the log database. If the default log file does not exist, no logs were written: then the main one."""
    if log_url is not None:
        return _require_existing(log_url)
    default = logs.log_url(url)
    return default if _exists(default) else url


def _check_logs_found(db: Db, log_db: Db) -> None:
    """Fail if runs have output but the log database is empty: the logs are elsewhere and would be lost."""
    if db.read(run_details.any_output) and not log_db.read(lambda tx: logs.tasks_after(tx, 0, 1)):
        raise StoreRefused(
            "Runs of this installation have output, but its default log database is empty. If the setting log_database"
            " names another database, name it with --from-logs."
        )


def _open_both(stack: ExitStack, url: str, log_url: str, *, durable: bool = True) -> tuple[Db, Db]:
    """Open the main and the log database, which may be the same one."""
    db = stack.enter_context(_open(url, durable=durable))
    if log_url == url:
        return db, db
    return db, stack.enter_context(_open(log_url, durable=durable, bulk=True))


def _copy_both(source: tuple[Db, Db], target: tuple[Db, Db]) -> dict[str, CopiedTable]:
    """Copy the main and the log database; nothing is copied unless both targets are empty."""
    _check_unused(target[0])
    check_empty(target[0], logs=False)
    check_empty(target[1], logs=True)
    return copy(source[0], target[0], logs=False) | copy(source[1], target[1], logs=True)


def _exists(url: str) -> bool:
    """Whether a database exists. Only SQLite is checked: it creates missing files, and the others report an error."""
    return not url.startswith("sqlite:") or Path(url.removeprefix("sqlite:///")).exists()


def _require_existing(url: str) -> str:
    if not _exists(url):
        raise StoreRefused(f"There is no database {url.removeprefix('sqlite:///')}. Check the path.")
    return url


def _check_unused(db: Db) -> None:
    """Fail if a server's heartbeat is recent. SQLite files need no check: a server holds a lock on them."""
    alive_since = wall_time() - DEFAULT_RULES.slot_lease
    running = [server for server in db.read(servers.list_servers) if server.heartbeat >= alive_since]
    if running:
        addresses = ", ".join(f"{server.address}:{server.port}" for server in running)
        raise StoreRefused(
            f"A server uses this database ({addresses}). Stop it first; if it crashed, wait two minutes."
        )


@contextmanager
def _open(url: str, *, durable: bool = True, bulk: bool = False) -> Iterator[Db]:
    db = open_db(url, durable=durable, role="tool", bulk=bulk)
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
