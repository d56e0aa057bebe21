"""Servers and bots of the release before this one beside those of this one, rolled forward and back under load."""

from __future__ import annotations

import io
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import urllib3

from myrmidon.sdk.client import Client
from myrmidon.sdk.transport import Transport
from tests import databases, servers
from tests.bot.bots import a_bot, wait_for
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server
from tests.upgrade.balancer import Balancer

ROOT = Path(__file__).parents[2]
PREVIOUS = ""
"""The tag of the release before this one; there is none before 0.1.0."""
BOTS = 3
PACE = 20

pytestmark = [pytest.mark.untraced, pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release before this one."""
    if not PREVIOUS:
        pytest.skip("nothing was released yet that could run beside this release")
    asked = ["git", "archive", "--format=zip", PREVIOUS, "src/myrmidon"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
    if told.returncode:
        pytest.skip(f"the history of this checkout does not reach back to {PREVIOUS}: {told.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("previous")
    with zipfile.ZipFile(io.BytesIO(told.stdout)) as archive:
        archive.extractall(folder)
    with (folder / "src" / "myrmidon" / "bot" / "__init__.py").open("a") as file:
        file.write("# So that its bots differ from those of this release, whatever has changed since.\n")
    return folder / "src"


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    made = Balancer()
    yield made
    made.close()


class Load(threading.Thread):
    """A client that submits one command after the other, through the balancer, and remembers what it was promised."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._over = threading.Event()
        self.promised: dict[str, str] = {}
        self.failed: list[BaseException] = []

    def run(self) -> None:
        try:
            while not self._over.wait(0.02):
                text = f"task {len(self.promised)}"
                properties = {"command": ["/bin/echo", text], "dimensions": {"pool": ["default"]}}
                [answer] = self._client.submit_tasks([{"name": text, "slices": [{"properties": properties}]}])
                self.promised[str(answer.task_id)] = text
        except BaseException as error:
            self.failed.append(error)
            raise

    def add_long(self, gate: Path) -> str:
        """A command that runs until there is a gate; its id.

        It is never silent for long: bots of before may forget an order that comes while they wait for its next word.
        """
        script = f"while [ ! -e {gate} ]; do echo . >&2; sleep 0.05; done; echo {gate.name}"
        properties = {"command": ["/bin/sh", "-c", script], "dimensions": {"pool": ["default"]}}
        request = {"name": gate.name, "priority": 20, "slices": [{"properties": properties}]}
        task_id = str(self._client.submit_tasks([request])[0].task_id)
        wait_for(lambda: self._client.task(task_id).result.state == "RUNNING", "a bot for the long task")
        self.promised[task_id] = gate.name
        return task_id

    def end(self) -> None:
        self._over.set()
        self.join(HANG_S)


class Installation:
    """Servers of two releases on one database, behind one address."""

    def __init__(self, stack: ExitStack, database: str, folder: Path, balancer: Balancer, previous: Path) -> None:
        self.balancer = balancer
        self.old = stack.enter_context(
            live_server(database, folder=folder / "old", source=previous, public_url=balancer.url, stop_s=HANG_S)
        )
        balancer.add(self.old.port)
        (folder / "new").mkdir()
        (folder / "new" / "admin.token").write_text(self.old.token)
        self.new = LiveServer(
            database, folder / "new", {"public_url": balancer.url, "stop_s": HANG_S, "release_grace_s": 1.0}
        )
        stack.callback(self.new.close)

    def join(self, server: LiveServer) -> None:
        server.start()
        self.balancer.add(server.port)

    def leave(self, server: LiveServer) -> None:
        self.balancer.remove(server.port)
        assert server.stop() == 0, server.log[-2000:]


def versions(client: Client) -> set[str]:
    return {bot.version for bot in client.bots().bots if bot.alive}


def finished(client: Client, ids: list[str]) -> int:
    pages = [ids[start : start + 1000] for start in range(0, len(ids), 1000)]
    tasks = [one for page in pages for one in client.wait(page, all_of=True, wait_s=0).tasks]
    return sum(one.state == "SUCCEEDED" for one in tasks)


def test_releases_side_by_side_rolled_forward_and_back_lose_nothing(
    dialect: str, previous: Path, balancer: Balancer, tmp_path: Path
) -> None:
    database = servers.new_database(databases.server_url(dialect))
    with ExitStack() as stack:
        fleet = Installation(stack, database, tmp_path, balancer, previous)
        token = fleet.old.new_token("bot-bootstrap", bound=False)
        client = Client(Transport(balancer.url, fleet.old.token))
        zipped = fleet.old.call("GET", "/bot/v1/zip", token=token).data
        bots = []
        for number in range(BOTS):
            folder = tmp_path / f"bot{number}"
            folder.mkdir()
            (folder / "bot.zip").write_bytes(zipped)
            bots.append(stack.enter_context(a_bot(balancer.url, folder, token=token)))
        for bot in bots:
            stack.callback(bot.process.terminate)  # all of them before the first is waited for
        load = Load(client)
        load.start()
        stack.callback(load.end)
        done = 0

        def goes_on() -> None:
            nonlocal done
            wait_for(lambda: load.failed or finished(client, list(load.promised)) >= done + PACE, "more work done")
            assert not load.failed
            done = finished(client, list(load.promised))

        goes_on()
        first = versions(client)
        assert len(first) == 1, "three bots of the old release"
        busy = load.add_long(tmp_path / "forward")
        fleet.join(fleet.new)
        goes_on()
        fleet.leave(fleet.old)
        wait_for(lambda: len(versions(client)) == 2, "a new release for those bots that may have it")
        assert first < versions(client), "the busy bot finishes with what it began with"
        assert client.task(busy).result.state == "RUNNING"
        (tmp_path / "forward").touch()
        wait_for(lambda: versions(client) != first and len(versions(client)) == 1, "all bots of the new release")
        goes_on()
        load.add_long(tmp_path / "back")
        fleet.join(fleet.old)
        goes_on()
        fleet.leave(fleet.new)
        goes_on()
        fleet.join(fleet.new)
        (tmp_path / "back").touch()
        goes_on()
        load.end()
        assert not load.failed
        wait_for(lambda: finished(client, list(load.promised)) == len(load.promised), "everything done")
        for task_id, text in load.promised.items():
            assert_ran_once(fleet.new, task_id, text)


def assert_ran_once(server: LiveServer, task_id: str, text: str) -> None:
    status, task = server.get(f"/api/v1/tasks/{task_id}")
    assert status == 200
    assert [run["state"] for run in task["runs"]].count("SUCCEEDED") == 1, task
    log: urllib3.BaseHTTPResponse = server.call("GET", f"/api/v1/tasks/{task_id}/log?stream=stdout")
    assert log.data == f"{text}\n".encode()
