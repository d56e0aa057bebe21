"""The published clients themselves, pinned and unmodified, against a real server with a real bot.

They are installed into folders of the test run. Where they cannot be installed, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import a_bot, wait_for
from tests.cases import some
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server
from tests.server.taskcluster.scheduler_client import METADATA, TASK_FIELDS, a_graph, a_node, slug

pytestmark = pytest.mark.full

PYTHON = ("taskcluster==1.3.5", "mohawk==0.3.4", "slugid==1.0.7", "six==1.17.0")
"""Without aiohttp, which the client needs only for its calls in coroutines, and which must be compiled."""
JAVASCRIPT = "taskcluster-client@2.0.0"
STORIES = Path(__file__).parent / "published"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("TASKCLUSTER_", "PYTHON"))}


def install(*command: str | Path, folder: Path) -> None:
    done = subprocess.run([*command], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(map(str, command))} failed: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Python story."""
    folder = tmp_path_factory.mktemp("python-client")
    install(sys.executable, "-m", "venv", folder / "v", folder=folder)
    python = folder / "v" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    install(*pip, "--no-deps", *PYTHON, folder=folder)
    install(*pip, "requests<3", folder=folder)
    return [str(python), str(STORIES / "story.py")]


@pytest.fixture(scope="module")
def javascript_client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the JavaScript story."""
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("this machine has no Node.js")
    folder = tmp_path_factory.mktemp("javascript-client")
    (folder / "package.json").write_text("{}")
    install("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", JAVASCRIPT, folder=folder)
    story = folder / "story.js"
    shutil.copy(STORIES / "story.js", story)
    return ["node", str(story)]


@pytest.fixture(params=some(["javascript_client", "python_client"], short=1))
def client(request: pytest.FixtureRequest) -> list[str]:
    command: list[str] = request.getfixturevalue(request.param)
    return command


@contextmanager
def a_farm(folder: Path, **settings: Any) -> Iterator[LiveServer]:
    """A server with one bot of the pool builders and the worker type small."""
    with live_server(folder=folder / "server", default_pool="builders", **settings) as started:
        token = started.new_token("bot-bootstrap")
        place = folder / "b1"
        place.mkdir()
        wait_for(lambda: started.call("GET", "/bot/v1/zip", token=token).status == 200, "the zip")
        (place / "bot.zip").write_bytes(started.call("GET", "/bot/v1/zip", token=token).data)
        flags = ("--pool", "builders", "--dimension", "worker_type=small")
        with a_bot(started.url, place, *flags, token=token):
            wait_for(lambda: started.get("/api/v1/bots/b1")[0] == 200, "the handshake")
            yield started


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with a_farm(tmp_path_factory.mktemp("farm")) as started:
        yield started


@pytest.fixture(scope="module")
def open_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One that the clients' network may use without credentials."""
    allow = [{"network": "127.0.0.0/8", "name": "ci", "role": "user", "group": "default"}]
    with a_farm(tmp_path_factory.mktemp("open-farm"), allow=allow) as started:
        yield started


def tell(client: list[str], farm: LiveServer, folder: Path, credentials: dict[str, str], **given: Any) -> Any:
    """What the client says of a graph whose first task waits until the graph has been extended."""
    told = {"url": f"{farm.url}/v1", "credentials": credentials, "go": str(folder / "go"), **given}
    done = subprocess.run(
        client, input=json.dumps(told), env=CLEAN, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documents(folder: Path) -> dict[str, Any]:
    """A listed graph, and what it is extended with."""
    waits = f"while [ ! -e {folder}/go ]; do sleep 0.05; done"
    where = {"provisionerId": "builders", "workerType": "small"}
    build = a_node("build", task={**where, "payload": {"command": ["sh", "-c", waits], "maxRunTime": 600}})
    test = a_node("test", build, task={**where, "payload": {"command": ["true"]}})
    more = a_node("report", build, test, task={**where, "payload": {"command": ["true"]}}, reruns=2)
    return {"graph": slug(), "document": a_graph(build, test, tags={"suite": "all"}, scopes=["x:*"]), "more": [more]}


def check_listed(told: Any, given: dict[str, Any]) -> None:
    graph = given["graph"]
    running = {"status": {"taskGraphId": graph, "schedulerId": "myrmidon", "state": "running"}}
    finished = {"status": {**running["status"], "state": "finished"}}
    assert told["ping"]["alive"] is True
    assert told["created"] == {"answer": running}
    assert (told["again"], told["extended"], told["status"]) == (running, running, finished)
    assert (told["other"]["status"], told["wrong"]["status"], told["unknown"]["status"]) == (409, 400, 404)
    assert set(told["unknown"]["body"]) == {"message", "error"}
    assert told["info"] == {**finished, "metadata": METADATA, "tags": {"suite": "all"}}
    build, test, report = told["inspect"]["tasks"]
    assert [set(task) for task in (build, test, report)] == [TASK_FIELDS] * 3
    assert [task["name"] for task in (build, test, report)] == ["build", "test", "report"]
    assert {task["state"] for task in (build, test, report)} == {"completed"}
    assert report == {
        "taskId": given["more"][0]["taskId"], "name": "report", "requires": given["more"][0]["requires"],
        "requiresLeft": [], "reruns": 2, "rerunsLeft": 2, "state": "completed", "satisfied": True, "dependents": [],
    }  # fmt: skip
    assert told["task"] == report
    assert told["inspect"]["scopes"] == ["x:*"]
    states = {task["name"]: task["state"] for task in told["before"]["tasks"]}
    assert states == {"build": "scheduled", "test": "unscheduled", "report": "unscheduled"}


def hawk_credentials(farm: LiveServer) -> dict[str, str]:
    made = farm.post("/api/v1/tokens", {"name": "ci", "role": "user", "hawk": True})[1]["hawk"]
    return {"clientId": made["client_id"], "accessToken": made["access_key"]}


@pytest.mark.short
def test_a_published_client_runs_a_graph_with_hawk(client, farm, tmp_path):
    given = documents(tmp_path)
    check_listed(tell(client, farm, tmp_path, hawk_credentials(farm), **given), given)


def test_a_published_client_runs_a_graph_without_credentials_on_an_allowed_network(client, open_farm, tmp_path):
    given = documents(tmp_path)
    check_listed(tell(client, open_farm, tmp_path, {}, **given), given)


def test_a_published_client_sends_the_form_by_label(client, farm, tmp_path):
    """Which it was never written for; it sends whatever it is given. The default pool of the settings is used."""
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    tasks = {
        "build": {"requires": [], "reruns": 1, "task": {"routing": "b", "payload": {"command": ["sh", "-c", waits]}}},
        "test": {
            "requires": ["build"],
            "task": {"payload": {"command": ["sh", "-c", 'test -n "$ID"'], "env": {"ID": {"$subs": "taskId:build"}}}},
        },
    }
    more = a_node("report", task={"provisionerId": "builders", "payload": {"command": ["true"]}})
    given = {"graph": slug(), "document": {"routing": "nightly", "tasks": tasks}, "more": [more]}
    told = tell(client, farm, tmp_path, hawk_credentials(farm), **given)
    assert told["created"]["answer"]["status"]["routing"] == "nightly"
    assert told["status"]["status"]["state"] == "finished"
    assert [(task["name"], task["state"]) for task in told["inspect"]["tasks"]] == [
        ("build", "completed"), ("test", "completed"), ("report", "completed"),
    ]  # fmt: skip


@pytest.mark.parametrize("credentials", [{}, {"clientId": "1", "accessToken": "x"}], ids=["none", "wrong"])
def test_a_published_client_is_refused_without_valid_credentials(client, farm, tmp_path, credentials):
    told = tell(client, farm, tmp_path, credentials, **documents(tmp_path))
    assert told["ping"]["alive"] is True
    assert (told["created"]["status"], set(told["created"]["body"])) == (401, {"message", "error"})
