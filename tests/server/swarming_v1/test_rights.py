"""Who may call what over v1, by the route table itself; and that no call makes the server fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.server.calls import Role, Route
from myrmidon.server.facades import every_route
from myrmidon.server.swarming_v1 import tasks as v1_tasks
from myrmidon.server.swarming_v1.style import V1, V1_OLD
from tests.server.contexts import a_task as native_task
from tests.server.inside import BOT, Inside, inside
from tests.server.swarming_v1.swarm import NEW, OLD, Checker, a_task, pairs

TABLE = [line for line in every_route() if line.style in (V1, V1_OLD)]
BODIES: dict[str, Any] = {"tasks/new": a_task(), "tasks/cancel": {"tags": ["none:such"]}}
QUERIES = {"tasks/count": "&start=0", "tasks/get_states": "&task_id=5cee4880088100"}
ODD = "?limit=5&alt=json&prettyPrint=false&fields=items&is_mp=True&extra_args=x&inputs_ref=&containment=y&cursor="
"""What old clients add to whatever they call."""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("rights")) as opened:
        opened.meet_bot()
        yield opened


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def fill_in(app: Inside, route: Route) -> tuple[str, Any]:
    rest = route.path.partition("swarming/v1/")[2]
    task = ""
    if "{task_id}" in route.path:
        task = app.post(f"{NEW}swarming/v1/tasks/new", a_task(), token=app.token("user")).json["task_id"]
    path = route.path.format(task_id=task, bot_id=BOT) + ODD + QUERIES.get(rest, "")
    return path, BODIES.get(rest, {}) if route.method == "POST" else None


@pytest.fixture(scope="module")
def document(app: Inside) -> Any:
    return app.get(f"{NEW}discovery/v1/apis/swarming/v1/rest", token="").json


def promised(document: Any, route: Route) -> Any:
    """What the document says of a route's answers; None for those that are not part of the API itself."""
    methods = [one for held in document["resources"].values() for one in held["methods"].values()]
    rest = route.path.partition("swarming/v1/")[2]
    found = [one["response"] for one in methods if (one["httpMethod"], one["path"]) == (route.method, rest)]
    return found[0] if found else None


@pytest.mark.parametrize("route", TABLE, ids=name_of)
def test_only_those_in_the_table_may_call_and_get_what_the_document_says(
    app: Inside, route: Route, document: Any
) -> None:
    schema = promised(document, route)
    assert (schema is None) == ("/discovery/" in route.path or route.path.startswith("/auth/"))
    for role in Role:
        app.meet_bot()
        path, body = fill_in(app, route)
        reply = app.call(route.method, path, body, token=app.token(role))
        expected = 200 if role in route.who else 401 if role is Role.NOBODY else 403
        assert reply.status == expected, (role, reply)
        assert reply.headers["content-type"] == "application/json"
        if reply.status == 200 and schema is not None:
            Checker(document["schemas"]).check(reply.json, schema, route.path)


def test_both_prefixes_have_the_same_routes() -> None:
    rests = {
        style: {(line.method, line.path.partition("swarming/v1/")[2]) for line in TABLE if "swarming/v1/" in line.path}
        - {("GET", "rest")}
        for style, prefix in ((V1, NEW), (V1_OLD, OLD))
        for TABLE in [[one for one in every_route() if one.style is style and one.path.startswith(prefix)]]
    }
    assert rests[V1] == rests[V1_OLD]
    assert len(rests[V1]) == 25


JUNK: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, "", "x", "\ud7ff", "k:v", "123", [], [1], ["a:b"], {}, {"key": 1}, [{"key": "k"}],
    [{"key": "k", "value": None}], [[]], "1e400", "NaN", "5cee4880088101", "a" * 5000,
]  # fmt: skip


def test_no_junk_makes_the_server_fail(app: Inside) -> None:
    dice = random.Random(3)
    fields = ["name", "priority", "task_slices", "properties", "expiration_secs", "tags", "user", "parent_task_id"]
    fields += ["request_uuid", "service_account", "evaluate_only", "pool_task_template", "bot_ping_tolerance_secs"]
    inner = ["command", "dimensions", "env", "env_prefixes", "caches", "execution_timeout_secs", "secret_bytes"]
    inner += ["io_timeout_secs", "grace_period_secs", "idempotent", "relative_cwd", "inputs_ref", "outputs"]
    for _ in range(400):
        body = a_task("true", dimensions=pairs(pool="default"))
        for field in dice.sample(fields, 2):
            body[field] = dice.choice(JUNK)
        slices = body.get("task_slices")
        if isinstance(slices, list) and slices and isinstance(slices[0], dict) and "properties" in slices[0]:
            slices[0]["properties"][dice.choice(inner)] = dice.choice(JUNK)
        reply = app.post(f"{NEW}swarming/v1/tasks/new", body)
        assert reply.status in (200, 400), (body, reply)


def test_no_query_makes_the_server_fail(app: Inside) -> None:
    values = ["", "0", "-1", "x", "1e400", "nan", "%00", "a:b", "a:b|c", "9" * 20, "9" * 5000, "TRUE", "3"]
    for route in TABLE:
        if route.method != "GET" or route.style is not V1 or route.query is None:
            continue
        path = route.path.format(task_id="5cee4880088100", bot_id=BOT)
        for name, value in itertools.product([*route.query.__struct_fields__, "unknown"], values):
            reply = app.get(f"{path}?{name}={value}")
            assert reply.status in (200, 400, 404), (path, name, value, reply)


def test_pages_of_named_servers_may_call(tmp_path: Path) -> None:
    page = "https://dash.example"
    with inside(tmp_path, allowed_origins=[page]) as app:
        for prefix in (NEW, OLD):
            path = f"{prefix}swarming/v1/tasks/list"
            asked = app.call("OPTIONS", path, token="", headers={"origin": page})
            assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, page)
            assert "authorization" in asked.headers["access-control-allow-headers"]
            assert app.get(path, headers={"origin": page}).headers["access-control-allow-origin"] == page
            for stranger in ("https://elsewhere.example", ""):
                headers = {"origin": stranger} if stranger else {}
                assert app.call("OPTIONS", path, token="", headers=headers).status == 403
                assert "access-control-allow-origin" not in app.get(path, headers=headers).headers
        new = f"{NEW}swarming/v1/tasks/new"
        assert app.post(new, a_task(), headers={"origin": page}).status == 200
        assert app.post(new, a_task(), headers={"origin": "https://elsewhere.example"}).status == 403
        assert "access-control-allow-origin" not in app.get("/api/v1/tasks", headers={"origin": page}).headers


def test_every_look_works_on_every_database(db_url: str, tmp_path: Path) -> None:
    with inside(tmp_path, db_url) as app:
        app.meet_bot()
        api = f"{NEW}swarming/v1/"
        made = [
            app.post(f"{api}tasks/new", a_task(tags=[f"n:{n}"], request_uuid=UUID.format(n))).json for n in (1, 2, 2)
        ]
        ids = [one["task_id"] for one in made]
        assert ids[1] == ids[2]
        for sort in ("CREATED_TS", "MODIFIED_TS", "STARTED_TS"):
            items = app.get(f"{api}tasks/list?sort={sort}&tags=pool:default|x&tags=n:1|2&start=1&state=PENDING").json[
                "items"
            ]
            assert [one["task_id"] for one in items] == ([] if sort == "STARTED_TS" else [ids[1], ids[0]])
        assert app.get(f"{api}tasks/count?start=0&tags=n:2&state=PENDING").json["count"] == "1"
        for path in ("bots/list?is_busy=FALSE&dimensions=os:Linux|Mac", "bots/count", "bots/dimensions?pool=default"):
            assert app.get(api + path).status == 200
        for path in (
            "queues/list",
            "tasks/tags",
            f"bot/{BOT}/get",
            f"bot/{BOT}/events",
            f"bot/{BOT}/tasks?sort=STARTED_TS",
        ):
            assert app.get(api + path).status == 200
        assert app.get(f"{api}task/{ids[0]}/result").json["state"] == "PENDING"
        assert app.post(f"{api}tasks/cancel", {"tags": ["n:1"]}).json["matched"] == "1"
        assert app.get(f"{api}tasks/get_states?task_id={ids[0]}").json["states"] == ["CANCELED"]
        assert app.call("POST", f"{api}bot/{BOT}/delete", b"").status == 200
        assert app.get(f"{api}bot/{BOT}/get").json["deleted"] is True


UUID = "00000000-0000-0000-0000-00000000000{}"


@pytest.mark.parametrize("sort", ["CREATED_TS", "MODIFIED_TS"])
@pytest.mark.parametrize("kind", ["list", "requests"])
def test_a_page_of_large_tasks_is_short_and_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: str, kind: str
) -> None:
    """1,000 requests of a MiB took 3 GiB, whoever asked for them."""
    monkeypatch.setattr(v1_tasks, "MAX_PAGE_BYTES", 10_000)
    monkeypatch.setattr(v1_tasks, "READ_AT_ONCE", 2)
    with inside(tmp_path) as app:
        made = app.submit(*[native_task(str(n) * 900) for n in range(9)])
        path, seen, pages = f"{NEW}swarming/v1/tasks/{kind}?sort={sort}&limit=8&start=1", [], 0
        page: dict[str, Any] = {"cursor": ""}
        while "cursor" in page:
            page = app.get(f"{path}&cursor={page['cursor']}").json
            seen += [one["name"][0] for one in page.get("items", [])]
            pages += 1
        assert seen == [str(n) for n in reversed(range(len(made)))]
        assert pages >= (3 if kind == "requests" else 2)


def test_a_page_has_200_tasks_and_a_key_with_very_many_values_is_listed_without_them(tmp_path: Path) -> None:
    with inside(tmp_path) as app:
        for part in range(2):
            tasks = [native_task(tags=[f"build:{part}-{n}", f"few:{part}"]) for n in range(101)]
            assert app.post("/api/v1/tasks", {"tasks": tasks}).status == 200
            known = {one["key"]: one["values"] for one in app.get("/api/v1/tasks/tags").json["tags"]}
            assert len(known["build"]) == (101, 0)[part]
        assert known["few"] == ["0", "1"]
        app.post("/api/v1/groups", {"name": "other"})
        assert app.get("/api/v1/tasks/tags", token=app.token("viewer", "other")).json == {"tags": []}
        api = f"{NEW}swarming/v1/"
        page = app.get(f"{api}tasks/list").json
        assert len(page["items"]) == 200
        rest = app.get(f"{api}tasks/list?cursor={page['cursor']}").json
        assert (len(rest["items"]), "cursor" in rest) == (2, False)
        assert len(app.get(f"{api}tasks/requests?limit=1000").json["items"]) == 202
