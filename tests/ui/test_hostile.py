"""Texts that others write stay texts on the page: names, tags, labels, logs, summaries, addresses. None is executed."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from playwright.sync_api import Page, expect

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


def test_payloads_in_addresses_stay_texts(visit: Visit) -> None:
    page = watched(visit)
    for payload in PAYLOADS[::20]:
        for path in ("/tasks/", "/jobs/", "/bots/", "/functions/", "/jobs/name/", "/system/"):
            page.goto(path + quote(payload, safe=""))
            expect(page.locator("main")).to_be_visible()
            check(page)
