"""Requests of the API v1 as they are stored: retries, tags, realms, and problems under the names that v1 has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.inside import Inside, inside
from tests.server.swarming_v1.swarm import NEW, a_task, pairs
from tests.server.test_fleet import write

API = f"{NEW}swarming/v1/"
POOLS = """
[pool.once]
default_retries = 0
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    write(folder / "config", pools_toml=POOLS)
    with inside(folder) as opened:
        opened.meet_bot(pools=["default", "once"])
        yield opened


def submitted(app: Inside, **fields: Any) -> str:
    reply = app.post(f"{API}tasks/new", a_task(**fields))
    assert reply.status == 200, reply.body
    return str(reply.json["task_id"])


def after_its_bot_died(app: Inside, task_id: str) -> dict[str, Any]:
    """The native result of a task after its bot began the run and then reported its own failure."""
    bot = app.token("bot")
    exchange = {"session": 1, "nonce": app.context.now(), "n": 1}
    [run] = app.post("/bot/v1/exchange", exchange, token=bot).json["tasks"]
    assert run["task_id"] == task_id
    told = {"run": run["run"], "token": run["token"]}
    reports = [{"type": "start", **told}, {"type": "fault", **told, "kind": "shutdown"}]
    app.post("/bot/v1/exchange", {"session": 1, "reports": reports}, token=bot)
    result: dict[str, Any] = app.get(f"/api/v1/tasks/{task_id}").json["result"]
    return result


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_task_whose_bot_died_is_retried_once_idempotent_or_not(app: Inside, idempotent: bool) -> None:
    task = submitted(app, idempotent=idempotent)
    once = after_its_bot_died(app, task)
    assert (once["state"], once["num_retries"]) == ("READY", 1)
    assert after_its_bot_died(app, task)["state"] == "BOT_DIED"


def test_a_pool_can_ask_for_no_retry(app: Inside) -> None:
    task = submitted(app, dimensions=pairs(pool="once"))
    assert after_its_bot_died(app, task)["state"] == "BOT_DIED"


def test_a_timeout_with_a_fraction_is_shown_as_the_next_whole_number(app: Inside) -> None:
    properties = {"command": ["true"], "dimensions": {"pool": ["nobody"]}, "execution_timeout_s": 2.5}
    task = {"name": "t", "slices": [{"properties": properties}], "max_instances": 2, "soft_timeout_s": 0.5}
    [task_id] = app.submit(task)
    assert app.get(f"{API}task/{task_id}/request").json["properties"]["execution_timeout_secs"] == "3"
    assert app.get(f"/api/v1/tasks/{task_id}").json["request"]["slices"][0]["properties"]["execution_timeout_s"] == 2.5
