"""Which pools, and which of their bots, a token that is bound to a resource group sees."""

from __future__ import annotations

import pytest

from tests.server.inside import inside
from tests.server.test_fleet import write

V1 = "/_ah/api/swarming/v1"
POOLS = """
closed = {closed}
[pool.ours]
groups = ["default", "others"]
[pool.theirs]
groups = ["others"]
[pool.staff]
roles = ["admin"]
"""
BOTS = {
    "b-ours": ["ours"],
    "b-theirs": ["theirs"],
    "b-both": ["ours", "theirs"],
    "b-free": ["free"],
    "b-staff": ["staff"],
}
SEEN = {"user": ["b-both", "b-free", "b-ours"], "admin": sorted(BOTS)}


def meet(app, name, pools):
    dimensions = {"id": [name], "pool": pools, "os": ["Linux"], "owner": [f"of {name}"]}
    reply = app.post("/bot/v1/handshake", {"bot_id": name, "session": 1, "dimensions": dimensions})
    assert reply.status == 200, reply


def opened(folder, url=None, *, closed="false"):
    write(folder / "config", pools_toml=POOLS.format(closed=closed))
    return inside(folder, url)


@pytest.fixture
def app(db_url, tmp_path):
    with opened(tmp_path, db_url) as server:
        for name, pools in BOTS.items():
            meet(server, name, pools)
        yield server


def bots_of(app, query="", **options):
    return [bot["bot_id"] for bot in app.get(f"/api/v1/bots?{query}", **options).json["bots"]]


def v1_bots_of(app, query="", **options):
    return [bot["bot_id"] for bot in app.get(f"{V1}/bots/list?{query}", **options).json["items"]]


@pytest.mark.parametrize("role", ["user", "viewer"])
def test_a_bound_token_lists_and_counts_only_bots_of_pools_that_its_group_may_use(app, role):
    token = app.token(role)
    assert (bots_of(app), v1_bots_of(app)) == (SEEN["admin"], SEEN["admin"])
    assert (bots_of(app, token=token), v1_bots_of(app, token=token)) == (SEEN["user"], SEEN["user"])
    assert bots_of(app, "limit=1&state=alive", token=token) == ["b-both"]
    assert app.get(f"{V1}/bots/count", token=token).json["count"] == "3"
    both = app.get("/api/v1/bots/b-both", token=token).json
    assert both["dimensions"]["pool"] == ["ours"]
    for search in ("pool:theirs", "pool:staff"):
        assert bots_of(app, f"dimension={search}", token=token) == []
        assert v1_bots_of(app, f"dimensions={search}", token=token) == []
    assert v1_bots_of(app, "dimensions=pool:theirs|free", token=token) == ["b-free"]


def test_a_bot_of_another_pool_does_not_exist(app):
    token = app.token("user")
    app.delete("/api/v1/bots/b-staff?force=true")
    for name in ("b-theirs", "b-staff", "none"):
        for path in (f"/api/v1/bots/{name}", f"{V1}/bot/{name}/get"):
            assert app.get(path, token=token).status == 404, path
        assert app.get(f"/api/v1/bots/{name}/events", token=token).json["events"] == []
        assert app.get(f"{V1}/bot/{name}/events", token=token).json["items"] == []
    assert [one["kind"] for one in app.get("/api/v1/bots/b-both/events", token=token).json["events"]] == [
        "bot_connected"
    ]
    shown = app.get(f"{V1}/bot/b-both/events", token=token).json["items"][0]["dimensions"]
    assert {"key": "pool", "value": ["ours"]} in shown


def test_dimensions_are_counted_over_visible_bots_only(app):
    def owners(query="", **options):
        listed = app.get(f"/api/v1/bots/dimensions{query}", **options).json["dimensions"]
        counts = {one["key"]: one["values"] for one in listed}
        return sorted(counts.get("owner", {})), counts.get("pool", {}), counts.get("os", {}).get("Linux", 0)

    token = app.token("user")
    assert owners() == ([f"of {name}" for name in SEEN["admin"]], {"free": 1, "ours": 2, "staff": 1, "theirs": 2}, 5)
    assert owners(token=token) == ([f"of {name}" for name in SEEN["user"]], {"free": 1, "ours": 2}, 3)
    assert owners("?pool=ours", token=token) == (["of b-both", "of b-ours"], {"ours": 2}, 2)
    assert owners("?pool=theirs", token=token) == ([], {}, 0)
    pairs = app.get(f"{V1}/bots/dimensions", token=token).json["bots_dimensions"]
    assert {"key": "pool", "value": ["free", "ours"]} in pairs


def test_pools_queues_and_metrics_name_only_pools_that_the_group_may_use(app):
    token = app.token("user")
    for pool in ("ours", "theirs", "free"):
        properties = {"dimensions": {"pool": [pool], "os": ["Solaris"]}, "command": ["true"]}
        app.submit({"name": pool, "slices": [{"properties": properties}]})
    names = [pool["name"] for pool in app.get("/api/v1/pools", token=token).json["pools"]]
    assert (names, app.get("/api/v1/pools?limit=1", token=token).json["cursor"] is not None) == (["free", "ours"], True)
    assert sorted(queue["pool"] for queue in app.get("/api/v1/queues", token=token).json["queues"]) == ["free", "ours"]
    v1_queues = app.get(f"{V1}/queues/list", token=token).json["items"]
    assert sorted(queue["dimensions"][1] for queue in v1_queues) == ["pool:free", "pool:ours"]
    permissions = app.get(f"{V1}/server/permissions", token=token).json
    assert permissions["list_bots"] == permissions["list_tasks"] == ["free", "ours"]
    assert b'pool="theirs"' in app.get("/metrics").body
    metrics = app.get("/metrics", token=token).body
    assert b'pool="ours"' in metrics
    assert b'pool="theirs"' not in metrics


def test_with_closed_pools_only_those_of_the_group_are_visible(tmp_path):
    with opened(tmp_path, closed="true") as app:
        for name, pools in BOTS.items():
            meet(app, name, pools)
        for name in ("others", "strangers"):
            assert app.post("/api/v1/groups", {"name": name}).status == 200
        assert bots_of(app, token=app.token("user")) == ["b-both", "b-ours"]
        assert bots_of(app, token=app.token("user", "others")) == ["b-both", "b-ours", "b-theirs"]
        assert bots_of(app, token=app.token("user", "strangers")) == []
        assert app.get(f"{V1}/bots/count", token=app.token("user", "strangers")).json["count"] == "0"
