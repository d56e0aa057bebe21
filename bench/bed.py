"""A bed to measure on: a fully durable database on a real disk, with a resource group and bots.

The verbs are called as a server calls them: a raw request is checked and drafted, then each of submit, claim and
report is a transaction of its own. The clock is the real one, but never stands still between two calls.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from myrmidon.model.bot import Handshake
from myrmidon.model.ids import IdSource
from myrmidon.model.task_result import Finish
from myrmidon.scheduler import bots, claim, maintenance, report, resource_groups, submit
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.store.engine.db import Db, Insert, Row, Tx, open_db
from myrmidon.store.engine.migrate import migrate
from tests import servers

KINDS = ("sqlite", "postgresql", "mariadb")
BOT = "bot-1"
DIMENSIONS = {"pool": ["default"], "os": ["Linux"]}
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def a_request(dimensions: Mapping[str, list[str]] = DIMENSIONS, number: int = 0) -> dict[str, Any]:
    """A plain task as a client writes it; those of different numbers differ, as real ones do."""
    properties = {"dimensions": dict(dimensions), "command": ["true", f"{number:08}"]}
    return {"name": f"bench-{number:08}", "slices": [{"properties": properties}]}


class Bed:
    """One database with a group; every verb at hand."""

    def __init__(self, url: str, *, durable: bool = True) -> None:
        self.url = url
        self.durable = durable
        self.db: Db = open_db(url, durable=durable)
        self.ids = IdSource(1)
        self._last = 0
        self._made = 0
        self._nonces: dict[str, int] = {}
        migrate(self.db, self.now())
        made = self.db.write(lambda tx: resource_groups.create_group(tx, "default", now=self.now(), ids=self.ids))
        self.group_id = made.id

    def now(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return self._last

    def greet(self, bot_id: str = BOT, dimensions: Mapping[str, list[str]] = DIMENSIONS) -> None:
        """Let a bot shake hands; it serves every queue that wants no more than these dimensions."""
        hello = Handshake(bot_id=bot_id, session=1, dimensions={"id": [bot_id], **dimensions})
        self.db.write(lambda tx: bots.handshake(tx, hello, now=self.now(), ids=self.ids))

    def submit(self, raws: Sequence[dict[str, Any]]) -> list[int]:
        now = self.now()
        drafts = [submit.draft_task(raw, now=now, ids=self.ids) for raw in raws]
        answers = self.db.write(lambda tx: submit.submit(tx, self.group_id, drafts, now=now, ids=self.ids))
        return [_answered(answer) for answer in answers]

    def poll(self, n: int, bot_id: str = BOT) -> Poll:
        """The bot's next question for work."""
        self._nonces[bot_id] = nonce = self._nonces.get(bot_id, 0) + 1
        return Poll(bot_id=bot_id, session=1, nonce=nonce, n=n)

    def claim(self, n: int, bot_id: str = BOT) -> list[Claimed]:
        now, poll = self.now(), self.poll(n, bot_id)
        return self.db.write(lambda tx: claim.claim(tx, poll, now=now, ids=self.ids))

    def finish(self, claimed: Sequence[Claimed], bot_id: str = BOT) -> None:
        now = self.now()
        done = [
            Finish(task_id=c.task_id, run=c.run, token=c.token, exit_code=0, duration=0.1 + n / 1e6)
            for n, c in enumerate(claimed)
        ]
        replies = self.db.write(lambda tx: report.report(tx, bot_id, done, session=1, now=now, ids=self.ids))
        if any(reply.outcome != report.Outcome.ACCEPTED for reply in replies):
            raise RuntimeError(f"a report was not accepted: {replies}")

    def requests(self, n: int) -> list[dict[str, Any]]:
        """Requests that were never made before."""
        self._made += n
        return [a_request(number=number) for number in range(self._made - n + 1, self._made + 1)]

    def live(self, raws: Sequence[dict[str, Any]]) -> None:
        """Whole lives: submitted, claimed, finished."""
        self.submit(raws)
        claimed = self.claim(len(raws))
        if len(claimed) != len(raws):
            raise RuntimeError(f"{len(claimed)} of {len(raws)} tasks were handed out")
        self.finish(claimed)

    def carry_all(self) -> None:
        """Carry out all chunked work."""
        maintenance.run_due(self.db, self.now, self.ids, timed=False)

    def close(self) -> None:
        self.db.close()


def _answered(answer: Any) -> int:
    if isinstance(answer, Exception):
        raise answer
    return int(answer.task_id)


class Recording:
    """A transaction that also notes which rows are inserted."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.inserted: list[tuple[Insert, list[Row]]] = []

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        self.inserted.append((statement, list(rows)))
        self._tx.insert(statement, rows)

    def defer(self, write: Callable[[Tx, list[Row]], None], rows: Sequence[Row]) -> None:
        """Write at once, so that these rows are noted too."""
        write(cast("Tx", self), list(rows))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def recorded(bed: Bed, verb: Callable[[Tx], Any]) -> tuple[Any, list[tuple[Insert, list[Row]]]]:
    """What a verb returns and inserts."""
    found: list[Recording] = []

    def noted(tx: Tx) -> Any:
        found.append(Recording(tx))
        return verb(cast("Tx", found[-1]))

    return bed.db.write(noted), found[-1].inserted


# ---------------------------------------------------------------- where


def real_disk() -> Path:
    """A folder whose writes reach a disk; it must be open to the accounts that servers run as."""
    wanted = [os.environ.get("MYRMIDON_BENCH_DIR"), "/var/tmp", os.environ.get("TMPDIR"), "."]
    for place in wanted:
        if place and Path(place).is_dir() and os.access(place, os.W_OK) and _filesystem(Path(place)) not in IN_MEMORY:
            return Path(place).absolute()
    raise SystemExit("No folder on a real disk was found; name one in MYRMIDON_BENCH_DIR.")


def _filesystem(place: Path) -> str:
    here = place.resolve()
    best, kind = -1, ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        at = Path(mounted.encode().decode("unicode_escape"))
        if here.is_relative_to(at) and len(at.parts) >= best:
            best, kind = len(at.parts), found
    return kind


class Ground:
    """Makes databases of each kind; servers are started when first asked for."""

    def __init__(self) -> None:
        disk = real_disk()
        os.environ["MYRMIDON_BENCH_DIR"] = str(disk)  # where tests/servers.py puts durable ones
        self.folder = Path(tempfile.mkdtemp(prefix="myrmidon-bench-", dir=disk))
        self._servers: dict[str, servers.Server] = {}
        self._files = 0

    def url(self, kind: str) -> str:
        """A new, empty database."""
        if kind == "sqlite":
            self._files += 1
            return f"sqlite:///{self.folder}/{self._files}.db"
        if kind not in self._servers:
            start = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}[kind]
            self._servers[kind] = start(durable=True)
        return self._servers[kind].new_database()

    @contextmanager
    def bed(self, kind: str) -> Iterator[Bed]:
        bed = Bed(self.url(kind))
        try:
            yield bed
        finally:
            bed.close()
            if kind == "sqlite":
                path = bed.url.removeprefix("sqlite:///")
                for file in Path(self.folder).glob(f"{Path(path).name}*"):
                    file.unlink()

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
