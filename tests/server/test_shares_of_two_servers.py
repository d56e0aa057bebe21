"""Fair shares and localities with two servers on one PostgreSQL or MariaDB, whose bots are spread over both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest

from tests import databases, servers
from tests.deadline import HANG_S, POLL_S
from tests.live import LiveServer
from tests.server.test_two_servers import a_pair
from tests.server.wire import WireBot, num_held, wait_for

pytestmark = [
    pytest.mark.full,
    pytest.mark.untraced,
    pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True),
]
Pair = tuple[LiveServer, LiveServer]
GROUPS = ("default", "other")
_pools = count(1)


@pytest.fixture(scope="module")
def pairs() -> Iterator[tuple[ExitStack, dict[str, Pair]]]:
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture
def two_servers(dialect, pairs, tmp_path_factory) -> Pair:
    """A sweep would wake bots whose wake was lost, so there is none."""
    stack, made = pairs
    if dialect not in made:
        url = servers.new_database(databases.server_url(dialect))
        folder = tmp_path_factory.mktemp(f"shares-{dialect}")
        made[dialect] = a_pair(stack, url, folder, sweep_s=3600, proxies=["127.0.0.1/32"])
        assert made[dialect][0].post("/api/v1/groups", {"name": "other"})[0] == 200
    return made[dialect]


@pytest.fixture
def pool() -> str:
    return f"pool{next(_pools)}"


class Bot(WireBot):
    """A bot at an address, as a proxy in front of the servers reports it."""

    def __init__(self, server: LiveServer, pool: str, number: int) -> None:
        super().__init__(server, f"{pool}-{number}")
        self.address = f"10.0.0.{number}"
        self.dimensions["pool"] = [pool]
        hello = {"bot_id": self.name, "session": self.session, "dimensions": self.dimensions}
        status, answer = server.post("/bot/v1/handshake", hello, headers={"X-Forwarded-For": self.address})
        assert status == 200, answer
        self.credential = answer["credential"]
        self.held: list[Any] = []

    def call(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        return super().call(path, body, headers={"X-Forwarded-For": self.address}, **options)

    def next(self, **fields: Any) -> list[Any]:
        """Report what the bot holds, and claim the next run."""
        self.held = self.exchange(reports=[self.finish_of(run, duration=1.0) for run in self.held], **fields)["tasks"]
        return self.held


# -------------------------------------------------------------------------------------------------- fair shares


def backlog(server: LiveServer, pool: str, group: str, number: int) -> None:
    """Tasks of a group, which are named after it."""
    properties = {"dimensions": {"pool": [pool]}, "command": ["true"]}
    tasks = [{"name": group, "slices": [{"properties": properties}]}] * number
    status, answer = server.post("/api/v1/tasks", {"tasks": tasks, "group": group})
    assert status == 200, answer


@pytest.mark.parametrize("per_server", [1, 3])
@pytest.mark.parametrize("larger", GROUPS)
def test_each_of_two_groups_gets_half_of_the_claims_of_both_servers(two_servers, pool, per_server, larger):
    """The backlog of each group came through another server, and the bots of both claim at the same time."""
    for server, group in zip(two_servers, GROUPS, strict=True):
        backlog(server, pool, group, 1000 if group == larger else 100)
    bots = [Bot(server, pool, 2 * number + at) for number in range(per_server) for at, server in enumerate(two_servers)]
    owners: list[str] = []
    with ThreadPoolExecutor(len(bots)) as threads:
        while len(owners) < 180:  # all at once, and equally fast
            owners += [run["name"] for runs in threads.map(Bot.next, bots) for run in runs]
    for bot in bots:
        bot.next(n=0)  # what still runs would count in other tests
    shares = Counter(owners[:180])
    print(f"{per_server} bots on each server, {larger} has more: {dict(shares)}")
    assert {group: shares[group] / 180 for group in GROUPS} == pytest.approx(dict.fromkeys(GROUPS, 0.5), abs=0.05)


# -------------------------------------------------------------------------------------------------- localities


def share(server: LiveServer, address: str) -> str:
    body = {"type": "int64", "payload": {"inline": "Bw=="}, "localities": [address]}
    return str(server.post("/api/v1/values", body)[1]["id"])


def submit(server: LiveServer, pool: str, value_id: str) -> None:
    task = {
        "name": "f", "function": {"package_name": "lib", "func_name": "lib.f"}, "outputs": [],
        "inputs": [{"kind": "shared", "type": "int64", "shared_value_id": value_id}],
        "slices": [{"properties": {"dimensions": {"pool": [pool]}}}],
    }  # fmt: skip
    status, answer = server.post("/api/v1/jobs", {"job": {"name": "j", "tasks": {"f": {"task": task}}}})
    assert status == 200, answer


class Idle:
    """Bots whose polls are held, each by its server."""

    def __init__(self, threads: ThreadPoolExecutor, bots: list[Bot]) -> None:
        self._threads, self._bots = threads, bots
        self.polls: dict[Future[Any], Bot] = {}
        for bot in bots:
            self._poll(bot)

    def _poll(self, bot: Bot) -> None:
        self.polls[self._threads.submit(bot.next, wait_s=POLL_S, slots=1)] = bot
        wanted = Counter(one.server.url for one in self.polls.values())
        wait_for(lambda: all(num_held(one.server) == wanted[one.server.url] for one in self._bots))  # type: ignore[arg-type]

    def taken_by(self) -> Bot:
        """The bot that gets the only task; it is idle again afterwards."""
        done, _ = wait(self.polls, HANG_S, FIRST_COMPLETED)
        [poll] = done
        bot = self.polls.pop(poll)
        assert len(poll.result()) == 1
        self._poll(bot)
        return bot

    def end(self) -> None:
        """Give each bot a last task, which ends its poll."""
        for bot in self._bots:
            properties = {"dimensions": {"pool": bot.dimensions["pool"], "id": [bot.name]}, "command": ["true"]}
            bot.server.post("/api/v1/tasks", {"tasks": [{"name": "last", "slices": [{"properties": properties}]}]})
        wait(self.polls, HANG_S)
        for bot in self._bots:
            bot.next(n=0)


@contextmanager
def idle(*bots: Bot) -> Iterator[Idle]:
    with ThreadPoolExecutor(len(bots)) as threads:
        waiting = Idle(threads, list(bots))
        try:
            yield waiting
        finally:
            waiting.end()


@pytest.mark.short
def test_tasks_of_an_idle_local_bot_run_there_although_they_come_through_the_other_server(two_servers, pool):
    """All idle bots are connected to one server, the tasks come through the other: 95 % run where their data is."""
    one, two = two_servers
    bots = [Bot(two, pool, number) for number in range(1, 5)]
    values = {bot.address: share(one, bot.address) for bot in bots}
    local: Counter[bool] = Counter()
    with idle(*bots) as waiting:
        for number in range(40):
            wanted = bots[number * 7 % 4]
            submit(one, pool, values[wanted.address])
            local[waiting.taken_by() is wanted] += 1
    print(f"all bots on the other server: {local[True]} of 40 ran where their data is")
    assert local[True] >= 38


def test_tasks_go_to_the_local_bot_of_the_server_through_which_they_come(two_servers, pool):
    one, two = two_servers
    far, near = Bot(one, pool, 1), Bot(two, pool, 2)
    value = share(one, near.address)
    with idle(far, near) as waiting:
        local: Counter[bool] = Counter()
        for _ in range(20):
            submit(two, pool, value)
            local[waiting.taken_by() is near] += 1
    assert local[True] >= 19


def test_no_task_waits_for_a_local_bot_of_the_other_server_while_one_is_idle_here(two_servers, pool):
    """The other server learns of a task by reading events, and that mostly takes longer than to start it here.

    On a busy machine it may be quicker now and then. A server that waits for the local bot would start none here.
    """
    one, two = two_servers
    far, near = Bot(one, pool, 1), Bot(two, pool, 2)
    value = share(one, near.address)

    def taken_by() -> Bot:
        submit(one, pool, value)
        return waiting.taken_by()

    with idle(far, near) as waiting:
        assert any(taken_by() is far for _ in range(20))
