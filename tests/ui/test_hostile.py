"""Texts that others write stay texts on the page: 200 payloads through every field of `FIELDS`. None is executed.

Each test sends all payloads of its fields, asserts which of them the server refuses, opens the pages that show the
others, and asserts that every one of them was there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from tests.live import LiveServer, a_source, live_server
from tests.server.wire import WireBot, piece
from tests.ui.conftest import Visit
from tests.ui.payloads import BETWEEN, FIELDS, NUMBER, Screen, accepted, groups_of, payloads

pytestmark = pytest.mark.full

REASONS = 12
"""Payloads in one reason."""
PART = 50
"""Payloads in one task or job, where the server limits how many it may have."""


@pytest.fixture(scope="module")
def server(built_page: Path) -> Iterator[LiveServer]:
    """A server without bots, for these tests only: lists of hostile things would slow the pages of others down."""
    with live_server(webhooks={"allowed_networks": ["127.0.0.0/8"]}) as server:
        yield server


@pytest.fixture
def screen(browser: Browser, server: LiveServer) -> Iterator[Screen]:
    visit = Visit(browser, server.url, server.token)
    yield Screen(visit.context().new_page())
    visit.close()
    assert visit.faults == []


Send = Callable[..., Any]


@pytest.fixture
def send(server: LiveServer) -> Send:
    """Make a call that must succeed."""

    def call(method: str, path: str, body: Any = None) -> Any:
        answer = server.call(method, path, body)
        assert answer.status == 200, (method, path, answer.data)
        return json.loads(answer.data)

    return call


def request(name: str = "hostile", properties: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A task that no bot takes, unless its dimensions say so."""
    all_properties = {"command": ["true"], "dimensions": {"pool": ["hostile"], "rack": ["none"]}, **(properties or {})}
    return {"name": name, "slices": [{"properties": all_properties, "wait_for_capacity": True}], **fields}


def call(needs: str = "none", **fields: Any) -> dict[str, Any]:
    """A call of a function, as a task of a job."""
    properties = {"command": [], "dimensions": {"pool": ["hostile"], "for": [needs]}}
    return {"task": request("a call", properties, **fields)}


def submit(send: Send, requests: Iterable[dict[str, Any]]) -> list[str]:
    made = send("POST", "/api/v1/tasks", {"tasks": list(requests)})["tasks"]
    assert [one for one in made if "task_id" not in one] == []
    return [one["task_id"] for one in made]


def outcomes(server: LiveServer, requests: Iterable[dict[str, Any]]) -> list[bool]:
    """For each request whether it is refused."""
    status, answer = server.post("/api/v1/tasks", {"tasks": list(requests)})
    assert status in (200, 400), answer
    return ["task_id" not in one for one in answer["tasks"]]


def rule(field: str) -> list[bool]:
    return [FIELDS[field].refused(text) for text in payloads(field)]


def parts(field: str) -> list[list[str]]:
    """The payloads of a field that are accepted, in four parts."""
    every = payloads(field)
    return [[text for text in part if not FIELDS[field].refused(text)] for part in groups_of(every, PART)]


def joined(texts: Iterable[str]) -> str:
    return BETWEEN.join(texts)


def a_bot(server: LiveServer, name: str, **dimensions: list[str]) -> WireBot:
    bot = WireBot(server, name)
    bot.dimensions = {"id": [name], "pool": ["hostile"], **dimensions}
    return bot


def work_of(bot: WireBot, number: int) -> list[Any]:
    """Claim so many runs and start them."""
    found: list[Any] = []
    while len(found) < number:
        found += bot.work(n=number - len(found), slots=number, holds=[[one["run"], one["token"]] for one in found])
    return found


# ---------------------------------------------------------------- the table


@pytest.mark.short
def test_every_field_has_two_hundred_payloads_of_its_own_and_a_test_sends_them() -> None:
    every = [text for field in FIELDS for text in payloads(field)]
    assert (NUMBER, len(set(every))) == (200, 200 * len(FIELDS))
    source = Path(__file__).read_text()
    assert [field for field in FIELDS if f'"{field}"' not in source] == []


# ---------------------------------------------------------------- tasks


def test_a_list_of_tasks_shows_names_users_tags_and_pools_as_texts(
    screen: Screen, server: LiveServer, send: Send
) -> None:
    pools = payloads("pool")
    wanted = [request(properties={"dimensions": {"pool": [pool]}}) for pool in pools]
    assert outcomes(server, wanted) == rule("pool")
    named = zip(*map(payloads, ("name of a task", "user of a task", "tag of a task")), strict=True)
    submit(send, (request(name, user=user, tags=["listed:yes", f"hostile:{tag}"]) for name, user, tag in named))
    screen.open("/tasks?tag=listed:yes")
    screen.page.get_by_role("button", name="Older tasks").click()
    expect(screen.page.get_by_role("row")).to_have_count(NUMBER + 1)
    screen.read()
    screen.open("/queues", "canary")
    screen.has_shown(["name of a task", "user of a task", "tag of a task", "pool"])
    screen.open("/", "My tasks")
    screen.page.keyboard.press("Control+k")
    screen.page.keyboard.type("canary")
    expect(screen.page.get_by_role("option", name="canary").first).to_be_visible()
    screen.read()


IN_A_REQUEST = [
    "dimension of a task", "argument of a command", "value of the environment", "folder of a command",
    "key of metadata", "value of metadata", "tag of a task",
]  # fmt: skip


def hostile_request(nth: int) -> dict[str, Any]:
    """A quarter of the payloads of a request."""
    part = {field: parts(field)[nth] for field in IN_A_REQUEST}
    properties = {
        "command": part["argument of a command"],
        "dimensions": {"pool": ["hostile"]}
        | {f"d{n}": list(some) for n, some in enumerate(groups_of(part["dimension of a task"], 16))},
        "env": {f"N{n}": text for n, text in enumerate(part["value of the environment"])},
    }
    folders = [joined(some) for some in groups_of(part["folder of a command"], 8)]
    slices = [{"properties": {**properties, "relative_cwd": folder}} for folder in folders]
    metadata = dict(zip(part["key of metadata"], part["value of metadata"], strict=True))
    tags = [f"hostile:{tag}" for tag in part["tag of a task"]]
    return {"name": "hostile request", "slices": slices, "metadata": metadata, "tags": tags}


def test_the_page_of_a_task_shows_its_request_as_texts(screen: Screen, send: Send) -> None:
    for task in submit(send, map(hostile_request, range(NUMBER // PART))):
        screen.open(f"/tasks/{task}", "No bot matches")
        screen.page.get_by_role("button", name="more").click()
        screen.read()
        for button in ("Copy as …", "Edit and rerun"):
            screen.page.get_by_role("button", name=button).click()
            expect(screen.page.get_by_role("dialog")).to_be_visible()
            screen.read()
            screen.page.keyboard.press("Escape")
    screen.has_shown(IN_A_REQUEST)


@pytest.mark.short
def test_what_a_request_may_not_contain_is_refused(server: LiveServer) -> None:
    makers: dict[str, Callable[[str], dict[str, Any]]] = {
        "dimension of a task": lambda text: request(properties={"dimensions": {"pool": ["hostile"], "d": [text]}}),
        "key of a dimension": lambda text: request(properties={"dimensions": {"pool": ["hostile"], text: ["x"]}}),
        "key of the environment": lambda text: request(properties={"env": {text: "x"}}),
        "folder of a command": lambda text: request(properties={"relative_cwd": text}),
        "name of an output file": lambda text: request(properties={"outputs": [text]}),
        "name of a cache": lambda text: request(properties={"caches": [{"name": text, "path": "c"}]}),
        "external id of a task": lambda text: request(external_id=text),
    }
    for field, make in makers.items():
        assert outcomes(server, map(make, payloads(field))) == rule(field), field


def test_what_a_function_may_not_be_called_is_refused(server: LiveServer) -> None:
    function = {"package_name": "m", "func_name": "f"}
    makers: dict[str, Callable[[str], dict[str, Any]]] = {
        "file name of a library": lambda text: {"function": {**function, "package_name": text, "language": "cpp"}},
        "type of a value": lambda text: {"function": function, "outputs": [{"type": text}]},
    }
    for field, make in makers.items():
        calls = {f"t{n}": call(**make(text)) for n, text in enumerate(payloads(field))}
        status, answer = server.post("/api/v1/jobs", {"job": {"name": "refused", "tasks": calls}})
        wrong = {problem["path"].split(".")[1] for problem in answer["error"]["problems"]}
        assert (status, wrong) == (400, set(calls)), field


def test_the_error_message_of_a_refused_request_shows_it_as_text(screen: Screen, send: Send) -> None:
    [task] = submit(send, [request()])
    screen.open(f"/tasks/{task}")
    screen.page.get_by_role("button", name="Edit and rerun").click()
    for part in groups_of(payloads("key of the environment"), PART):
        wrong = json.dumps(request(properties={"env": dict.fromkeys(part, "x")}))
        screen.page.get_by_label("The request as JSON").fill(wrong)
        screen.page.get_by_role("button", name="Submit").click()
        expect(screen.page.get_by_role("alert").get_by_text("canary")).to_be_visible()
        screen.read()


@pytest.mark.short
def test_a_summary_in_markdown_shows_payloads_as_texts(screen: Screen, send: Send) -> None:
    [task] = submit(send, [request()])
    text = "# A summary\n\n" + "\n\n".join(payloads("summary in Markdown"))
    send("PUT", f"/api/v1/tasks/{task}/annotation", {"content": text})
    screen.open(f"/tasks/{task}", "A summary")
    assert screen.page.locator("a[href*='javascript']").count() == 0
    # A link to an address that is not one of a web page is shown as the text of the link.
    shown = [one for one in screen.missing("summary in Markdown") if "[x](javascript:" not in one]
    assert shown == []


# ---------------------------------------------------------------- runs


@pytest.mark.short
def test_a_log_shows_payloads_as_texts(screen: Screen, server: LiveServer, send: Send) -> None:
    [task] = submit(send, [request("hostile log", {"dimensions": {"pool": ["hostile"], "for": ["log"]}})])
    bot = a_bot(server, "writes", **{"for": ["log"]})
    bot.shake()
    [run] = work_of(bot, 1)
    bot.start(run)
    streams = [
        "".join(f"{line}\n" for line in payloads(field)).encode() for field in ("line of stdout", "line of stderr")
    ]
    bot.exchange(n=0, logs=[piece(run, stream, 0, data) for stream, data in enumerate(streams)])
    bot.finish(run)
    log = screen.page.get_by_role("log")
    screen.page.set_viewport_size({"width": 1280, "height": 9000})  # only lines that are in view are elements
    for stream in ("stdout", "stderr"):
        screen.open(f"/tasks/{task}?stream={stream}")
        screen.page.get_by_role("button", name=stream, exact=True).click()
        expect(log.get_by_text("canary").last).to_be_visible()
        expect(log.get_by_role("button")).to_have_count(NUMBER)
        screen.read()
    screen.has_shown(["line of stdout", "line of stderr"])
    screen.page.get_by_label("Search the log").fill("onerror")
    expect(screen.page.get_by_text("20 lines").first).to_be_visible()
    screen.read()


FAILURES = ["line of stderr", "label of a failed task"]
SHOWN_TAILS = 20
"""Failed tasks of a job; the page shows the ends of the logs of a few more than this."""


def test_the_failures_of_a_job_show_labels_and_ends_of_logs_as_texts(
    screen: Screen, server: LiveServer, send: Send
) -> None:
    bot = a_bot(server, "fails", **{"for": ["failures"]})
    bot.shake()
    every = list(zip(*map(payloads, FAILURES), strict=True))
    for some in groups_of(every, SHOWN_TAILS):
        said = {label: line for line, label in some}
        task = {"payload": {"command": ["false"], "dimensions": {"pool": ["hostile"], "for": ["failures"]}}}
        tasks = {label: {"task": task} for label in said}
        job = send("POST", "/api/v1/jobs", {"job": {"name": "hostile failures", "tasks": tasks}})["job_id"]
        runs = work_of(bot, len(said))
        logs = [piece(run, 1, 0, f"Error: {said[run['name']]}\n".encode()) for run in runs]
        bot.exchange(n=0, logs=logs, reports=[bot.finish_of(run, 1) for run in runs])
        screen.open(f"/jobs/{job}", "exit code 1")
    screen.has_shown(FAILURES)


RAISED = ["type of an exception", "message of an exception"]


def test_the_page_of_a_failed_task_shows_why_it_ended_as_texts(screen: Screen, server: LiveServer, send: Send) -> None:
    bot = a_bot(server, "raises", **{"for": ["errors"]})
    bot.shake()
    function = {"package_name": "hostile_module", "func_name": "fails"}
    calls = {f"call {n}": call("errors", function=function) for n in range(NUMBER)}
    send("POST", "/api/v1/jobs", {"job": {"name": "hostile errors", "tasks": calls}})
    runs = work_of(bot, len(calls))
    texts = [joined(some) for some in parts("traceback")]
    raised = [
        {"type": kind, "message": message, "traceback": texts[n] if n < len(texts) else ""}
        for n, (kind, message) in enumerate(zip(*map(payloads, RAISED), strict=True))
    ]
    bot.exchange(n=0, reports=[bot.finish_of(run, 1, error=error) for run, error in zip(runs, raised, strict=True)])
    screen.open("/functions/hostile_module:fails", "canary")
    screen.has_shown(RAISED)
    needs = {"dimensions": {"pool": ["hostile"], "for": ["errors"]}}
    faults = submit(send, (request("has a fault", needs, retries=0) for _ in texts))
    reports = [
        {"type": "fault", "run": run["run"], "token": run["token"], "kind": "client_error", "message": joined(some)}
        for run, some in zip(work_of(bot, len(faults)), parts("message of a fault"), strict=True)
    ]
    bot.exchange(n=0, reports=reports)
    for task in [*faults, *(run["task_id"] for run in runs[: len(texts)])]:
        screen.open(f"/tasks/{task}", "Why it ended")
    screen.has_shown(["traceback", "message of a fault"])


# ---------------------------------------------------------------- jobs, functions, values


NODE = {"task": {"payload": {"command": ["true"], "dimensions": {"pool": ["hostile"], "rack": ["none"]}}}}


def test_lists_of_jobs_show_names_and_tags_as_texts(screen: Screen, send: Send, server: LiveServer) -> None:
    for name, tag in zip(payloads("name of a job"), payloads("tag of a job"), strict=True):
        tags = ["listed:yes", f"hostile:{tag}"]
        send("POST", "/api/v1/jobs", {"job": {"name": name, "tags": tags, "tasks": {"a": NODE}}})
    for text in payloads("external id of a job"):
        document = {"name": "refused", "external_id": text, "tasks": {"a": NODE}}
        assert server.post("/api/v1/jobs", {"job": document})[0] == 400
    screen.open("/jobs?tag=listed:yes")
    for number in range(2, NUMBER // 50 + 1):
        screen.page.get_by_role("button", name="Older jobs").click()
        expect(screen.page.get_by_role("row")).to_have_count(number * 50 + 1)
    screen.read()
    screen.has_shown(["name of a job", "tag of a job"])
    for path in ("/jobs?view=names", "/"):
        screen.open(path, "canary")


def test_a_job_shows_labels_as_texts(screen: Screen, send: Send) -> None:
    tasks = dict.fromkeys(payloads("label"), NODE) | {"last": {**NODE, "requires": payloads("label")[:3]}}
    job = send("POST", "/api/v1/jobs", {"job": {"name": "hostile labels", "tasks": tasks}})["job_id"]
    screen.open(f"/jobs/{job}/graph", "Drag to move")
    drawn = screen.page.get_by_role("group", name="Graph of the job").get_by_role("button")
    expect(drawn).to_have_count(len(tasks))
    screen.read()
    screen.has_shown(["label"])
    screen.texts.clear()
    screen.open(f"/jobs/{job}/tasks", "canary")
    screen.page.get_by_role("button", name="More tasks").click()
    expect(screen.page.get_by_role("row")).to_have_count(len(tasks) + 1)
    screen.read()
    screen.has_shown(["label"])
    screen.open(f"/jobs/{job}/time", "Critical path")


TEXTS_OF_A_JOB = ["key of a job's metadata", "value of a job's metadata", "text of a job"]


def test_a_job_shows_its_metadata_as_texts(screen: Screen, send: Send, server: LiveServer) -> None:
    for keys, values, texts in zip(*map(parts, TEXTS_OF_A_JOB), strict=True):
        document = {"name": "hostile texts", "metadata": dict(zip(keys, values, strict=True)), "tasks": {"a": NODE}}
        job = send("POST", "/api/v1/jobs", {"job": document})["job_id"]
        for number, text in enumerate(texts):
            send("POST", f"/api/v1/jobs/{job}/meta", {"name": f"n{number}", "value": text})
        screen.open(f"/jobs/{job}", "n49:")
    screen.has_shown(TEXTS_OF_A_JOB)
    for text in payloads("name of a text of a job"):
        assert server.post(f"/api/v1/jobs/{job}/meta", {"name": text, "value": "x"})[0] == 400


def test_a_list_of_functions_shows_names_as_texts(screen: Screen, send: Send) -> None:
    fields = {"name of a function": "func_name", "module of a function": "package_name"}
    calls = {
        f"{key} {n}": call(function={"package_name": "m", "func_name": "f", key: text})
        for field, key in fields.items()
        for n, text in enumerate(payloads(field))
    }
    send("POST", "/api/v1/jobs", {"job": {"name": "hostile functions", "tasks": calls}})
    screen.open("/functions", "canary")
    screen.has_shown(fields)


def test_a_task_shows_values_as_texts(screen: Screen, send: Send) -> None:
    packed = [base64.b64encode(msgspec.msgpack.encode({text: text})).decode() for text in payloads("value")]
    inputs = [{"kind": "constant", "type": "Map<string, string>", "payload": {"inline": one}} for one in packed]
    tasks = {"a": call(function={"package_name": "m", "func_name": "f"}, inputs=inputs)}
    job = send("POST", "/api/v1/jobs", {"job": {"name": "hostile values", "tasks": tasks}})["job_id"]
    [task] = send("GET", f"/api/v1/jobs/{job}/tasks")["tasks"]
    screen.open(f"/tasks/{task['task_id']}", "Inputs and outputs")
    show = screen.page.get_by_role("button", name="show", exact=True)
    expect(show).to_have_count(NUMBER)
    show.evaluate_all("buttons => buttons.forEach(button => button.click())")
    expect(screen.page.locator("pre", has_text="canary")).to_have_count(NUMBER)
    screen.read()
    screen.has_shown(["value"])


# ---------------------------------------------------------------- bots

IN_A_LIST_OF_BOTS = [
    "id of a bot", "reason of a quarantine", "reason of a maintenance", "version of a bot", "dimension of a bot"
]  # fmt: skip


def test_a_list_of_bots_shows_what_they_tell_as_texts(screen: Screen, server: LiveServer) -> None:
    token = server.new_token("bot-bootstrap")

    def introduce(bot_id: str, number: int, *, os: str = "", **told: str) -> tuple[int, Any]:
        dimensions = {"id": [bot_id], "pool": ["listed"]} | ({"os": [os]} if os else {})
        version = payloads("version of a bot")[number]
        told["version"] = "" if FIELDS["version of a bot"].refused(version) else version
        hello = {"bot_id": bot_id, "session": 1, "dimensions": dimensions, **told}
        return server.post("/bot/v1/handshake", hello, token=token)

    versions = [server.post("/bot/v1/handshake", {"bot_id": "v", "session": 1, "dimensions": {"id": ["v"]},
                                                  "version": text}, token=token)[0]
                for text in payloads("version of a bot")]  # fmt: skip
    assert [status != 200 for status in versions] == rule("version of a bot")

    ids, reasons = payloads("id of a bot"), payloads("reason of a quarantine")
    for number, (bot_id, reason) in enumerate(zip(ids, reasons, strict=True)):
        status, answer = introduce(bot_id, number, quarantined=reason)
        assert (status != 200) == FIELDS["id of a bot"].refused(bot_id), answer
        if status != 200:
            status, answer = introduce(f"q{number}", number, quarantined=reason)
            assert status == 200, answer
    dimensions, reasons = payloads("dimension of a bot"), payloads("reason of a maintenance")
    for number, (dimension, reason) in enumerate(zip(dimensions, reasons, strict=True)):
        status, answer = introduce(f"m{number}", number, os=dimension, maintenance=reason)
        is_refused = "dimensions.os" in (answer["quarantined"] or "")
        assert (status, is_refused) == (200, FIELDS["dimension of a bot"].refused(dimension))
        if is_refused:
            assert introduce(f"m{number}", number, maintenance=reason)[1]["quarantined"] is None
    screen.open("/bots?dimension=pool:listed", "canary")
    for number in range(2, 2 * NUMBER // 100 + 1):
        screen.page.get_by_role("button", name="More bots").click()
        expect(screen.page.get_by_role("row")).to_have_count(number * 100 + 1)
    screen.read()
    screen.has_shown(IN_A_LIST_OF_BOTS)
    screen.open(f"/bots/{quote(accepted('id of a bot')[0], safe='')}", "Quarantined")


IN_A_BOT = ["dimension of a bot", "state of a bot", "cache of a bot", "event of a bot", "name of a task"]


def test_the_page_of_a_bot_shows_what_it_tells_and_has_run_as_texts(
    screen: Screen, server: LiveServer, send: Send
) -> None:
    dimensions = {f"d{n}": list(some) for n, some in enumerate(groups_of(accepted("dimension of a bot"), 16))}
    bot = a_bot(server, "tells", **{"for": ["timeline"]}, **dimensions)
    state = {"reported": payloads("state of a bot"), "named_caches": dict.fromkeys(payloads("cache of a bot"), 1)}
    bot.shake(state=state)
    needs = {"dimensions": {"pool": ["hostile"], "for": ["timeline"]}}
    submit(send, (request(name, needs) for name in payloads("name of a task")))
    for _ in range(NUMBER // PART):
        bot.exchange(n=0, reports=[bot.finish_of(run) for run in work_of(bot, PART)])
    for text in payloads("event of a bot"):
        assert bot.call("/bot/v1/event", {"session": bot.session, "kind": "bot_log", "message": text})[0] == 200
    screen.open("/bots/tells", "canary")
    screen.page.get_by_text("Everything it reports").click()
    screen.page.get_by_role("button", name="Earlier").click()
    expect(screen.page.get_by_text("wrote: ")).to_have_count(NUMBER)
    screen.read()
    screen.has_shown(IN_A_BOT)


# ---------------------------------------------------------------- the system


def test_the_pages_of_the_system_show_payloads_as_texts(screen: Screen, server: LiveServer, send: Send) -> None:
    names = payloads("name of a token"), payloads("name of a resource group"), payloads("address of a webhook")
    refused = []
    for token, group, hook in zip(*names, strict=True):
        send("POST", "/api/v1/tokens", {"name": token, "role": "viewer"})
        refused_group = server.post("/api/v1/groups", {"name": group})[0] != 200
        assert refused_group == FIELDS["name of a resource group"].refused(group)
        url = f"https://127.0.0.1:1024/?{hook}"
        refused.append(server.post("/api/v1/webhooks", {"url": url, "kinds": ["task-graph-extended"]})[0] != 200)
    assert refused == rule("address of a webhook")
    for text in payloads("name of a file of the configuration"):
        assert server.post("/api/v1/config", {"files": {text[:128]: "x"}, "dry_run": True})[0] == 400
    comments = "".join(f"# {text}\n" for text in payloads("text of a file of the configuration"))
    send("POST", "/api/v1/config", {"files": {"scripts/hostile.py": comments}})
    screen.open("/system/tokens", "canary")
    screen.open("/system/webhooks", "canary")
    screen.open("/values", "canary")
    screen.open("/system/config", "First version")
    screen.has_shown([
        "name of a token", "name of a resource group", "address of a webhook", "text of a file of the configuration",
    ])  # fmt: skip


def test_the_reasons_of_reverts_are_shown_as_texts(browser: Browser, built_page: Path, tmp_path: Path) -> None:
    with live_server() as server:
        server.stop()
        server.source = a_source(tmp_path, ("bot/link/http_client.py", "= 15.0", "= 14.0"))
        server.start()
        visit = Visit(browser, server.url, server.token)
        screen = Screen(visit.context().new_page())
        digest = next(one["digest"] for one in server.get("/api/v1/releases")[1]["releases"] if one["num_servers"])
        for number, some in enumerate(groups_of(payloads("reason of a revert"), REASONS)):
            change = "allow" if number % 2 else "revert"
            status, answer = server.post(f"/api/v1/releases/{digest}/{change}", {"reason": joined(some)})
            assert status == 200, answer
            screen.open("/system/releases", some[0])
        screen.has_shown(["reason of a revert"])
        visit.close()
        assert visit.faults == []


# ---------------------------------------------------------------- addresses

WALK = """async ([addresses, marks]) => {
    const texts = [];
    const shown = mark => [document.body.textContent, ...[...document.querySelectorAll('input')].map(one => one.value)]
        .some(text => text.includes(mark));
    for (const [n, address] of addresses.entries()) {
        history.pushState({}, '', address);
        while (!shown(marks[n])) await new Promise(requestAnimationFrame);
        texts.push(document.title, document.body.textContent,
            ...[...document.querySelectorAll('input')].map(one => one.value));
    }
    return texts.join('\\n');
}"""
ADDRESSES = {
    "id of a task in the address": "/tasks/{}?run={}#{}",
    "id of a job in the address": "/jobs/{}#{}",
    "name of a job in the address": "/jobs/name/{}",
    "id of a bot in the address": "/bots/{}",
    "function in the address": "/functions/{}",
    "filters of the address": "/tasks?tag=x:{}&name={}&pool={}&bot={}&user={}&group={}&state={}&sort={}#{}",
    "filters of bots": "/bots?dimension=x:{}&state={}",
}


@pytest.mark.parametrize("field", ADDRESSES)
def test_payloads_in_an_address_are_shown_as_texts(screen: Screen, field: str) -> None:
    screen.open("/queues")
    every = payloads(field)
    addresses = [ADDRESSES[field].replace("{}", quote(text, safe="")) for text in every]
    screen.texts.append(screen.page.evaluate(WALK, [addresses, every]))
    screen.check()
    screen.has_shown([field])
