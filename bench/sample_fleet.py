"""A day of a fleet that builds and tests software, for the pictures of the web page: `fill(DATABASE)`.

Tasks are submitted, claimed and finished by the verbs at the times of a simulated clock: a heap of events, and after
each of them the idle bots of each pool take what is ready. The same seed makes the same day.
"""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from bench.bed import Bed
from bench.page_rows import keep_bots_alive
from myrmidon.model.bot import Handshake
from myrmidon.model.task_result import Finish, Start
from myrmidon.scheduler import bots, report, submit, submit_job
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.engine.db import open_db
from myrmidon.store.engine.migrate import migrate
from myrmidon.store.tables import log
from myrmidon.store.tables.log_times import Mark

SECOND = 1_000_000
HOUR_S = 3600
DAY_S = 24 * HOUR_S
SUBMITTER = "first administrator"
GB = 1 << 30
VERSION = sha256(b"the release of the fleet").hexdigest()


def _linux(cores: int, **more: list[str]) -> dict[str, list[str]]:
    return {"os": ["Linux", "Debian", "Debian-12"], "cpu": ["x86-64"], "cores": [str(cores)], **more}


MAC = {"os": ["Mac", "Mac-15"], "cpu": ["arm64"], "cores": ["12"]}
FLEET: dict[str, dict[str, list[str]]] = {
    **{f"build-{n:02}": {"pool": ["build"], **_linux(32)} for n in range(1, 7)},
    **{f"test-{n:02}": {"pool": ["test"], **_linux(8)} for n in range(1, 11)},
    **{f"gpu-{n:02}": {"pool": ["gpu"], **_linux(48, gpu=["nvidia", "a10"])} for n in range(1, 3)},
    **{f"mac-mini-{n:02}": {"pool": ["mac"], **MAC} for n in range(1, 4)},
}
CACHES = {"build": ["ccache", "git", "cargo_registry"], "test": ["git", "pip"], "gpu": ["models"], "mac": ["git"]}

FAILURES = {
    "test_cart_total": """tests/shop/test_cart.py::test_total FAILED

    def test_total():
        cart = Cart(["apple", "pear", "plum"])
>       assert cart.total() == Money("7.40")
E       AssertionError: assert Money('7.39') == Money('7.40')

tests/shop/test_cart.py:31: AssertionError
""",
    "connection": """tests/db/test_migrate.py::test_upgrade ERROR

psycopg.OperationalError: connection to server at "db-3.lab" (10.2.0.43), port 5432 failed: Connection refused
        Is the server running on that host and accepting TCP/IP connections?
""",
    "render": """comparing tests/render/golden/axis.png
render::axis_labels: 214 pixels differ, 0 allowed
thread 'render::axis_labels' panicked at tests/render.rs:118:9:
error: image differs from the golden image
""",
}


class Step(NamedTuple):
    """A task: where it runs, how long, after what, and how it fails."""

    pool: str
    seconds: float
    requires: Sequence[str] = ()
    failure: str = ""


def _request(name: str, step: Step) -> dict[str, Any]:
    command = ["ci/run", name.replace(" ", "-")]
    properties = {"command": command, "dimensions": {"pool": [step.pool]}}
    return {"name": name, "slices": [{"properties": properties, "expiration_s": DAY_S}]}


class Day(Bed):
    """A database whose clock is that of the simulation."""

    def __init__(self, database: Path, seed: int) -> None:
        self.end_at = time.time_ns() // 1000
        self.at = self.end_at - DAY_S * SECOND
        super().__init__(f"sqlite:///{database}", durable=False)
        self.random = random.Random(seed)
        self.logs = open_db(log.log_url(self.url), durable=False, bulk=True)
        migrate(self.logs, self.now())
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.session = self.at
        self._fates: dict[int, Step] = {}
        """How long each task takes, and how it fails."""
        self._idle = {pool: [b for b, has in FLEET.items() if has["pool"] == [pool]] for pool in CACHES}

    def now(self) -> int:
        self._last = max(self._last + 1, self.at)
        return self._last

    def poll(self, n: int, bot_id: str = "") -> Poll:
        return structs.replace(super().poll(n, bot_id), session=self.session)

    # ------------------------------------------------------------ events

    def plan(self, second: float, event: Callable[[], None]) -> None:
        """Let something happen so many seconds after the current time."""
        heapq.heappush(self._events, (self.at + round(second * SECOND), next(self._order), event))

    def live(self, _raws: object = None) -> None:
        """Until now; what runs then goes on running."""
        while self._events and self._events[0][0] < self.end_at:
            self.at, _, event = heapq.heappop(self._events)
            event()
            self.hand_out()

    def hand_out(self) -> None:
        for pool, idle in self._idle.items():
            self.random.shuffle(idle)
            while idle and (claimed := self.claim(1, idle[-1])):
                self.begin(claimed[0], idle.pop(), pool)

    def begin(self, claimed: Claimed, bot: str, pool: str) -> None:
        self.at += self.random.randint(40, 400) * 1000
        self.tell(bot, Start(claimed.task_id, claimed.run, claimed.token))
        step = self._fates[claimed.task_id]
        took = step.seconds * self.random.uniform(0.8, 1.3)
        self.plan(took, partial(self.end, claimed, bot, pool, took, step.failure))

    def end(self, claimed: Claimed, bot: str, pool: str, took: float, failure: str) -> None:
        said = FAILURES.get(failure, "").encode()
        if said:
            self.write(claimed, said)
        self.tell(
            bot,
            Finish(
                task_id=claimed.task_id, run=claimed.run, token=claimed.token, exit_code=1 if failure else 0,
                duration=took, stderr_size=len(said), cost_usd=took * 0.42 / HOUR_S,
            ),
        )  # fmt: skip
        self._idle[pool].append(bot)

    def tell(self, bot: str, what: Start | Finish) -> None:
        now = self.now()
        [reply] = self.db.write(lambda tx: report.report(tx, bot, [what], session=self.session, now=now, ids=self.ids))
        if reply.outcome != report.Outcome.ACCEPTED:
            raise RuntimeError(f"{what}: {reply}")

    def write(self, claimed: Claimed, said: bytes) -> None:
        marks = [Mark(self.now(), 0)]
        item = report.LogBytes(
            task_id=claimed.task_id, run=claimed.run, token=claimed.token, stream=1, offset=0, content=said, marks=marks
        )
        self.logs.write(partial(report.append_log, item=item))

    # ------------------------------------------------------------ what is submitted

    def submit_lone(self, name: str, step: Step, **fields: Any) -> None:
        now = self.now()
        draft = submit.draft_task({**_request(name, step), **fields}, now=now, ids=self.ids, authenticated=SUBMITTER)
        self._fates[draft.task_id] = step
        self.db.write(lambda tx: submit.submit(tx, self.group_id, [draft], now=now, ids=self.ids))

    def submit_job(self, name: str, steps: dict[str, Step], tags: list[str]) -> None:
        now = self.now()
        tasks = {
            label: {"requires": list(step.requires), "task": _request(label, step)} for label, step in steps.items()
        }
        raw = {"name": name, "tasks": tasks, "tags": tags}
        draft = draft_job(raw, now=now, ids=self.ids, authenticated=SUBMITTER)
        self._fates.update({draft.task_ids[label]: step for label, step in steps.items()})
        submit_job.submit_job(self.db.write, self.group_id, draft, now=now, ids=self.ids)

    def build_and_test(self, number: int, *, fails: bool) -> None:
        """A change that is built, tested on many bots, packaged and reported."""
        built = ["build"]
        tests = {f"unit-{n}": Step("test", 60 + 25 * (n % 5), built) for n in range(1, 13)}
        tests |= {f"integration-{n}": Step("test", 150 + 40 * n, built) for n in range(1, 5)}
        tests["render"] = Step("gpu", 240, built)
        if fails:
            tests |= {f"unit-{n}": Step("test", 75, built, "test_cart_total") for n in (4, 9)}
            tests["render"] = Step("gpu", 240, built, "render")
        if fails or self.random.random() < 0.12:
            tests["integration-3"] = Step("test", 200, built, "connection")
        steps = {
            "checkout": Step("build", 14),
            "lint": Step("build", 45, ["checkout"]),
            "build": Step("build", 170, ["checkout"]),
            "docs": Step("build", 80, ["checkout"]),
            **tests,
            "package": Step("build", 60, ["build", "lint"]),
            "report": Step("test", 8, ["package", "docs", *tests]),
        }
        branch = self.random.choice(["main", "main", "main", "release-7"])
        self.submit_job("build and test", steps, [f"branch:{branch}", f"change:{41200 + number}"])

    def nightly(self) -> None:
        pieces = {f"fuzz-{n}": Step("test", 500 + 90 * n) for n in range(1, 9)}
        self.submit_job("nightly fuzzing", {**pieces, "summary": Step("test", 20, list(pieces))}, ["suite:fuzz"])

    def deploy(self) -> None:
        labels = ["image", "staging", "smoke", "production"]
        steps = {label: Step("build", 30 + 15 * n, labels[max(0, n - 1) : n]) for n, label in enumerate(labels)}
        self.submit_job("deploy website", steps, ["service:website"])

    def lone(self) -> None:
        is_bad = self.random.random() < 0.3
        name, step, user, tags = self.random.choice([
            ("bisect regression", Step("build", 300), "alice", ["branch:main", "bug:5512"]),
            ("sync mirrors", Step("build", 40), "cron", ["suite:maintenance"]),
            ("train ranking model", Step("gpu", 1500), "bob", ["suite:ml", "model:ranking-3"]),
            ("benchmark parser", Step("test", 120), "carol", ["suite:bench"]),
            ("ios simulator tests", Step("mac", 400), "dora", ["suite:ios"]),
            ("render preview", Step("gpu", 200, failure="render" if is_bad else ""), "erik", ["branch:charts"]),
        ])  # fmt: skip
        self.submit_lone(name, step, user=user, tags=tags)

    # ------------------------------------------------------------ bots

    def introduce(self) -> None:
        for bot, dimensions in FLEET.items():
            pool = dimensions["pool"][0]
            state = {
                "hostname": f"{bot}.lab.example", "cores": int(dimensions["cores"][0]), "load": 1.4,
                "ram": 64 * GB, "ram_free": 41 * GB, "disk_total": 930 * GB, "disk_free": 512 * GB,
                "uptime": 41 * DAY_S, "cost_usd_hour": 0.42,
                "named_caches": {cache: self.random.randint(1, 90) * GB // 4 for cache in CACHES[pool]},
            }  # fmt: skip
            hello = Handshake(
                bot_id=bot, session=self.session, dimensions={"id": [bot], **dimensions}, state=json.dumps(state),
                address=f"10.2.0.{20 + len(bot) + int(bot[-2:])}", version=VERSION,
            )  # fmt: skip
            self.db.write(partial(bots.handshake, request=hello, now=self.now(), ids=self.ids))


def fill(database: Path, seed: int = 7) -> None:
    """Make the database; nothing may use it yet."""
    day = Day(database, seed)
    day.introduce()
    for number in range(50):
        last = number == 49
        second = DAY_S - 1300 if last else number * 1680 + day.random.uniform(0, 600)
        fails = last or number in (9, 23, 37)
        day.plan(second, partial(day.build_and_test, number, fails=fails))
    for number in range(230):
        day.plan(day.random.uniform(0, DAY_S) if number < 222 else DAY_S - 260 + 30 * (number - 222), day.lone)
    day.plan(9 * HOUR_S, day.nightly)
    for hour in (2, 15, 19, 23.2):
        day.plan(hour * HOUR_S, day.deploy)
    day.live()
    day.at = day.end_at
    day.db.write(partial(keep_bots_alive, now=day.now()))
    day.logs.close()
    day.close()


def let_bots_be_seen(database: Path) -> None:
    """Let the bots of the simulation have just sent a heartbeat, while the server runs."""
    now = time.time_ns() // 1000
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        connection.executemany("UPDATE bots SET heartbeat = ? WHERE id = ?", [(now, bot) for bot in FLEET])
        connection.commit()
