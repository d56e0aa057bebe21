"""Texts that others write stay texts on the page: names, tags, labels, logs, summaries, addresses. None is executed."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from playwright.sync_api import Page, expect

from myrmidon import Client
from myrmidon.sdk.transport import Transport
from tests.cli.conftest import Up
from tests.functions import remote_tasks as tasks
from tests.ui.conftest import Api, Visit

CANARY = "window.canary=1"
_WATCH = """
window.reports = [];
document.addEventListener('securitypolicyviolation', event => window.reports.push(event.violatedDirective));
"""
_SHAPES = [
    "<script>{}</script>",
    "<img src=x onerror={}>",
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>",
    "<a href=javascript:{}>x</a>",
    "<details open ontoggle={}>",
    "<body onload={}>",
    "<math><mi xlink:href=javascript:{}>",
    "<style>@import 'x';</style><script>{}</script>",
    "<input autofocus onfocus={}>",
    "<video><source onerror={}>",
    "<object data=javascript:{}>",
    "<form action=javascript:{}><button>",
    "<template><script>{}</script></template>",
    "<base href=javascript:{}//>",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>",
    "<marquee onstart={}>",
    "<xss style=animation-name:x onanimationstart={}>",
    "[x](javascript:{})",
]
_WRAPS = ["{}", '">{}', "'>{}", "</title>{}", "</script>{}", "{{{{{}}}}}", "${{{}}}", "--><!--{}", "\u2028{}", "%3C{}"]
PAYLOADS = [wrap.format(shape.format(CANARY)) for shape in _SHAPES for wrap in _WRAPS]
"""200 of them."""


def watched(visit: Visit) -> Page:
    """A page that counts reports of its security policy."""
    page = visit.context().new_page()
    page.add_init_script(_WATCH)
    return page


def check(page: Page) -> None:
    assert page.evaluate("window.canary") is None
    assert page.evaluate("window.reports") == []
    assert page.locator("iframe, object, embed, base, main script, main style, marquee").count() == 0


def test_there_are_two_hundred_payloads() -> None:
    assert len(set(PAYLOADS)) == 200


def test_payloads_in_names_and_tags_of_tasks_stay_texts(visit: Visit, api: Api) -> None:
    for n, payload in enumerate(PAYLOADS):
        name = re.sub(r"[^\x20-\x7e]", " ", payload)[:200]
        api.submit("true", name=name, tags=["hostile:yes", f"t{n}:{name}"[:200]], user=name[:100],
                   dimensions={"never": ["so"]})  # fmt: skip
    page = watched(visit)
    page.goto("/tasks?tag=hostile:yes")
    expect(page.get_by_role("row")).to_have_count(101)
    page.get_by_role("button", name="Older tasks").click()
    expect(page.get_by_role("row")).to_have_count(201)
    check(page)
    page.goto("/")
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    check(page)


def test_payloads_in_a_log_stay_texts(visit: Visit, api: Api) -> None:
    command = "cat <<'END_OF_PAYLOADS'\n" + "\n".join(PAYLOADS) + "\nEND_OF_PAYLOADS\necho the end"
    task = api.submit(command, name="hostile log")
    api.wait(task)
    page = watched(visit)
    page.goto(f"/tasks/{task}")
    expect(page.get_by_role("log").get_by_text("the end", exact=True)).to_be_visible()
    check(page)
    page.get_by_role("button", name="start", exact=True).click()
    expect(page.get_by_role("log").get_by_text(PAYLOADS[0], exact=True).first).to_be_visible()
    page.get_by_label("Search the log").fill("onerror")
    expect(page.get_by_text("20 lines").first).to_be_visible()
    check(page)


def test_payloads_in_labels_of_a_job_and_its_summary_stay_texts(visit: Visit, api: Api) -> None:
    labels = [re.sub(r"[^\x20-\x7e]", " ", payload)[:200] for payload in PAYLOADS[:40]]
    script = f"echo {json.dumps('Error: <img src=x onerror=' + CANARY + '>')} >&2; exit 1"
    job = api.submit_job("<script>window.canary=1</script>", {label: (script, []) for label in labels})
    api.wait_for_job(job)
    page = watched(visit)
    ready = {"": "tasks", "/graph": "Drag to move", "/time": "Critical path", "/tasks": "myrmidon job watch"}
    for view, text in ready.items():
        page.goto(f"/jobs/{job}{view}")
        expect(page.get_by_text(text).first).to_be_visible()
        check(page)
    page.goto("/jobs?view=names")
    expect(page.get_by_role("link", name="<script>window.canary=1</script>")).to_be_visible()
    check(page)


def test_payloads_in_a_summary_stay_texts(visit: Visit, api: Api) -> None:
    task = api.submit("true", name="summarised")
    api.wait(task)
    text = "# A summary\n\n" + "\n\n".join(PAYLOADS)
    api.call("PUT", f"/api/v1/tasks/{task}/annotation", {"content": text})
    page = watched(visit)
    page.goto(f"/tasks/{task}")
    expect(page.get_by_role("heading", name="A summary")).to_be_visible()
    check(page)
    assert page.locator("a[href^='javascript']").count() == 0


def test_payloads_in_a_request_stay_texts(visit: Visit, api: Api) -> None:
    """Dimensions, environment, folder: what the page of a task shows of its request."""
    texts = [re.sub(r"[^\x20-\x7e]", " ", payload)[:200] for payload in PAYLOADS]
    properties = {
        "command": texts[:60],
        "dimensions": {"pool": ["default"], "never": texts[:4]},
        "env": {f"N{n}": text for n, text in enumerate(texts[:60])},
        "relative_cwd": texts[1],
    }
    request = {"name": "hostile request", "slices": [{"properties": properties, "wait_for_capacity": True}]}
    [made] = api.call("POST", "/api/v1/tasks", {"tasks": [request]})["tasks"]
    assert "task_id" in made, made
    page = watched(visit)
    page.goto(f"/tasks/{made['task_id']}")
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
    expect(page.get_by_text("No bot matches").first).to_be_visible()
    check(page)
    for button in ("Copy as …", "Edit and rerun"):
        page.get_by_role("button", name=button).click()
        check(page)
        page.keyboard.press("Escape")
    page.goto("/queues")
    expect(page.get_by_text("never=").first).to_be_visible()
    check(page)


def test_payloads_of_bots_stay_texts(visit: Visit, api: Api) -> None:
    """Ids as far as the server accepts them, dimensions, messages of events, reasons of a quarantine."""
    made = {"name": PAYLOADS[0], "role": "bot-bootstrap", "uses": len(PAYLOADS), "bot_pool": "*"}
    token = api.call("POST", "/api/v1/tokens", made)["token"]
    accepted: list[str] = []
    for number, payload in enumerate(PAYLOADS):
        bot_id = re.sub(r"[^\x20-\x7e]", " ", payload)[:200] if number % 5 == 0 else f"hostile {number}"
        told = {"pool": ["hostile"], "id": [bot_id], "text": [payload[:200]]}
        hello = {"bot_id": bot_id, "session": 1, "dimensions": told}
        answer = api.http.request("POST", f"{api.url}/bot/v1/handshake", json=hello, headers=_bearer(token))
        if answer.status == 200:
            accepted.append(bot_id)
            event = {"session": 1, "kind": "bot_log", "message": payload}
            headers = _bearer(json.loads(answer.data)["credential"])
            assert api.http.request("POST", f"{api.url}/bot/v1/event", json=event, headers=headers).status == 200
    assert len(accepted) > len(PAYLOADS) // 2
    last = accepted[-1]
    api.call("POST", f"/api/v1/bots/{quote(last, safe='')}/quarantine", {"reason": PAYLOADS[1]})
    page = watched(visit)
    for path in ("/bots?dimension=pool:hostile", f"/bots/{quote(last, safe='')}", "/system/tokens", "/system/events"):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        check(page)


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_payloads_in_errors_and_values_of_functions_stay_texts(visit: Visit, api: Api) -> None:
    with Client(Transport(api.url, api.token)) as client:
        with client.new_job(PAYLOADS[0]) as job:
            failed = tasks.needs("/no/such/" + "".join(PAYLOADS)[:3000])
            both = tasks.joined((1, "\n".join(PAYLOADS)))
        job.wait()
        assert job.errors()
        del failed, both
    listed = api.call("GET", f"/api/v1/jobs/{job.id}/tasks")["tasks"]
    page = watched(visit)
    for task in listed:
        page.goto(f"/tasks/{task['task_id']}")
        expect(page.get_by_role("list", name="Inputs")).to_be_visible()
        show = page.get_by_role("button", name="show", exact=True)
        while show.count():
            show.first.click()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        check(page)
    page.goto(f"/jobs/{job.id}")
    expect(page.get_by_text("1 task", exact=True).first).to_be_visible()
    check(page)
    page.goto("/functions")
    expect(page.get_by_text("needs").first).to_be_visible()
    check(page)


def test_payloads_in_settings_webhooks_and_groups_stay_texts(visit: Visit, api: Api, up: Up) -> None:
    text = "".join(f"# {re.sub(r'[^ -~]', ' ', payload)}\n" for payload in PAYLOADS)
    api.call("POST", "/api/v1/config", {"files": {"scripts/hostile.py": text}})
    for payload in PAYLOADS[:20]:
        api.call("POST", "/api/v1/webhooks", {"url": f"https://127.0.0.1:1024/?{quote(payload, safe='<>=()/')}"})
        name = re.sub(r"[^\x20-\x7e]", " ", payload)[:100]
        api.http.request("POST", f"{api.url}/api/v1/groups", json={"name": name}, headers=_bearer(api.token))
    page = watched(visit)
    for path, shown in {"/system/config": "hostile.py", "/system/webhooks": "1024", "/values": "canary"}.items():
        page.goto(path)
        expect(page.get_by_text(shown).first).to_be_visible()
        if path == "/system/config":
            page.get_by_role("button", name="scripts/hostile.py", exact=True).click()
            expect(page.get_by_text("First version")).to_be_visible()
        check(page)
    api.call("POST", "/api/v1/config", {"files": {"scripts/hostile.py": None}})
    for hook in api.call("GET", "/api/v1/webhooks")["webhooks"]:
        api.call("DELETE", f"/api/v1/webhooks/{hook['id']}")


def test_payloads_in_addresses_stay_texts(visit: Visit) -> None:
    page = watched(visit)
    for payload in PAYLOADS[::40]:
        for path in ("/tasks/", "/jobs/", "/bots/", "/functions/", "/jobs/name/", "/system/"):
            page.goto(path + quote(payload, safe=""))
            expect(page.locator("main")).to_be_visible()
            check(page)
