"""Graphs on two real servers and one PostgreSQL or MariaDB: either may be asked, and either may die."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, cycle
from threading import Event

import pytest
import urllib3

from tests import databases, servers
from tests.bot.bots import wait_for
from tests.bot.test_chaos import bot_of
from tests.bot.test_live import log
from tests.chaos.proxy import chaos
from tests.deadline import HANG_S
from tests.graphs.live import Graphs, Job, checked
from tests.server.test_two_servers import a_pair
from tests.server.wire import WireBot

pytestmark = [
    pytest.mark.full,
    pytest.mark.untraced,
    pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True),
]
_pools = count(1)


@pytest.fixture(scope="module")
def pairs():
    """Pairs of servers, made when they are first asked for."""
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture
def two_servers(dialect, pairs, tmp_path_factory):
    stack, made = pairs
    if dialect not in made:
        url = servers.new_database(databases.server_url(dialect))
        made[dialect] = a_pair(stack, url, tmp_path_factory.mktemp(f"graphs-{dialect}"), sweep_s=0.5)
    yield made[dialect]
    checked(made[dialect][0])


@pytest.fixture
def pool() -> str:
    return f"graphs{next(_pools)}"


def at(server, pool) -> Graphs:
    return Graphs(server, pool)


class Workers:
    """Bots on both servers that finish whatever they get, until the test is over."""

    def __init__(self, two, pool, *, exit_codes=None) -> None:
        self.two = two
        self.exit_codes = exit_codes or {}
        self.over = Event()
        self.threads = ThreadPoolExecutor(4)
        bots = [at(server, pool).bot(f"{pool}-{number}") for number, server in enumerate([*two, *two])]
        self.working = [self.threads.submit(self._work, bot) for bot in bots]

    def _work(self, bot: WireBot) -> None:
        reports: list[object] = []
        while not self.over.is_set() or reports:
            bot.nonce += 1
            body = {"session": bot.session, "nonce": bot.nonce, "n": 4, "wait_s": 0.5, "reports": reports}
            answer = self._stubborn(bot, body)
            reports = [bot.finish_of(task, self.exit_codes.get(task["name"], 0)) for task in answer["tasks"]]

    def _stubborn(self, bot, body):
        """Ask one server after the other; the same nonce gets the same answer."""
        for server in cycle([bot.server, *self.two]):
            try:
                status, answer = server.post("/bot/v1/exchange", body, token=bot.credential)
            except urllib3.exceptions.HTTPError:
                continue
            if status == 200:
                return answer
            assert status == 503, answer
        raise AssertionError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        for work in self.working:
            work.result(HANG_S)
        self.threads.shutdown()


def layered(graphs: Graphs, layers: int, width: int) -> dict[str, object]:
    return {
        f"n{layer}-{place}": graphs.node(
            "true", *([f"n{layer - 1}-{place}", f"n{layer - 1}-{(place + 1) % width}"] if layer else [])
        )
        for layer in range(layers)
        for place in range(width)
    }


@pytest.mark.short
def test_a_graph_submitted_on_one_server_runs_on_real_bots_of_both(two_servers, pool, tmp_path):
    one, two = two_servers
    bots, notes = tmp_path / "bots", tmp_path / "notes"  # commands may not write into the parents of a bot's folder
    notes.mkdir()
    with bot_of(one, bots / f"{pool}-1", pool), bot_of(two, bots / f"{pool}-2", pool):
        said = notes / "said"
        graphs = at(one, pool)
        job = graphs.submit({
            "a": graphs.node(f"echo a >> {said}"),
            "b": graphs.node(f"echo m >> {said}", "a"),
            "c": graphs.node(f"echo m >> {said}", "a"),
            "d": graphs.node(f"echo d >> {said}", "b", "c"),
        })  # fmt: skip
        told = Job(two, {"job_id": job.id, "task_ids": {}}).wait()
        assert told["state"] == "SUCCEEDED", log(one, job.ids["a"], "stderr")
        assert said.read_text().split() == ["a", "m", "m", "d"]
        assert job.events() == ["running", "finished"]


def test_extensions_that_race_the_completion_of_their_parents_lose_nothing(two_servers, pool):
    """Bots finish parents on one server while the other is asked to add their children."""
    one, two = two_servers
    graphs = at(one, pool)
    with Workers(two_servers, pool):
        job = graphs.submit({"hold": graphs.node(hold=True), **{f"p{n}": graphs.node() for n in range(30)}})
        job.server = two
        for number in range(30):
            job.extend({f"c{number}": graphs.node("true", f"p{number}", f"p{(number + 7) % 30}")})
            job.extend({f"g{number}": graphs.node("true", f"c{number}")})
        job.do("release", {"task": "hold"})
        assert (job.wait()["state"], job.show()["counts"]) == ("SUCCEEDED", {"SUCCEEDED": 91})
    assert {task["run"][-2:] for task in job.tasks().values()} == {"01"}
    assert job.events().count("finished") == 1


def test_an_extension_that_races_the_end_of_its_job_is_added_before_it_or_refused(two_servers, pool):
    one, two = two_servers
    graphs = at(one, pool)
    with Workers(two_servers, pool):
        for _ in range(10):
            job = graphs.submit({"a": graphs.node()})
            job.server = two
            status, answer = job.call("extend", {"job": {"tasks": {"b": graphs.node("true", "a")}}})
            assert status == 200 or answer["error"]["code"] == "wrong_state"
            assert job.wait()["counts"] == {"SUCCEEDED": 2 if status == 200 else 1}


def test_a_whole_graph_is_cancelled_while_both_servers_work_on_it(two_servers, pool):
    one, two = two_servers
    graphs = at(one, pool)
    with Workers(two_servers, pool):
        job = graphs.submit({**layered(graphs, 20, 20), "held": graphs.node(hold=True)})
        wait_for(lambda: job.show()["num_succeeded"] >= 40, "some tasks")
        assert Job(two, {"job_id": job.id, "task_ids": {}}).do("cancel")["state"] == "CANCELLED"
        told = job.settle()
    assert told["state"] == "CANCELLED"
    assert set(job.states().values()) <= {"SUCCEEDED", "CANCELLED", "KILLED"}
    assert job.states()["held"] == "CANCELLED"


def test_a_job_is_retried_automatically_and_its_failed_part_only(two_servers, pool):
    one, _ = two_servers
    graphs = at(one, pool)
    codes = {"bad": 1}
    with Workers(two_servers, pool, exit_codes=codes):
        tasks = {"good": graphs.node(), "bad": graphs.node("true", "good"), "last": graphs.node("true", "bad")}
        job = graphs.submit(tasks, max_num_retries=1)
        assert (job.wait()["state"], job.show()["num_retries"]) == ("FAILED", 1)
        codes.clear()
        job.do("rerun")
        assert job.wait()["state"] == "SUCCEEDED"
    runs = {label: int(task["run"][-2:], 16) for label, task in job.tasks().items()}
    assert runs == {"good": 1, "bad": 3, "last": 1}


@pytest.mark.short
def test_kill_of_a_server_in_mid_graph_costs_nothing_but_repeated_calls(two_servers, pool):
    one, two = two_servers
    graphs = at(one, pool)
    with Workers(two_servers, pool):
        job = graphs.submit(layered(graphs, 20, 10))
        wait_for(lambda: job.show()["num_succeeded"] >= 20, "some tasks")
        two.kill()
        wait_for(lambda: job.show()["num_succeeded"] >= 60, "more tasks")
        two.start()
        assert job.wait()["counts"] == {"SUCCEEDED": 200}
    assert {task["run"][-2:] for task in job.tasks().values()} == {"01"}
    assert job.events() == ["running", "finished"]


def test_a_real_bot_goes_on_with_the_graph_when_its_server_is_killed(two_servers, pool, tmp_path):
    """Behind one address, as a balancer gives it."""
    one, two = two_servers
    graphs, go = at(two, pool), tmp_path / "go"
    with chaos(one.url, rate=0.0) as way, bot_of(two, tmp_path / pool, pool, "--server", way.url):
        gate = f"while [ ! -e {go} ]; do sleep 0.02; done"
        job = graphs.submit({"a": graphs.node(gate), "b": graphs.node("true", "a"), "c": graphs.node("true", "b")})
        job.until("a", "RUNNING")
        one.kill()
        way.turn_to(two.url)
        go.touch()
        assert (job.wait()["state"], job.states()) == ("SUCCEEDED", dict.fromkeys("abc", "SUCCEEDED"))
        one.start()
