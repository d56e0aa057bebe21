"""What the tests of the web page may ask for: a real server with two bots, and Debian's Chromium.

up        a running `myrmidon up` with two bots, one for all tests of a worker
browser   a running Chromium
visit     opens pages in a browser that is signed in; see `Visit`
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect, sync_playwright

from tests.cli.conftest import Up, start_up, stop_up
from tests.deadline import HANG_S

ROOT = Path(__file__).parents[2]
HANG_MS = HANG_S * 1000
SETTINGS = """
[webhooks]
allowed_networks = ["127.0.0.0/8"]
"""
expect.set_options(timeout=HANG_MS)


@pytest.fixture(scope="session")
def built_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built page; several workers build it once."""
    lock = tmp_path_factory.getbasetemp().parent / "ui.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        made = subprocess.run(["make", "--no-print-directory", "ui"], cwd=ROOT, capture_output=True, text=True)
    if "there is no Node" in made.stderr:
        pytest.skip("there is no Node to build the web page with")
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "src" / "myrmidon" / "server" / "web" / "static"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running Chromium. Its event loop runs in this thread, where other files start loops of their own."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium; run tools/install-servers")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def up(built_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start_up(tmp_path_factory.mktemp("up"), "--bots", "2", settings=SETTINGS)
    try:
        yield running
    finally:
        stop_up(running)


class Api:
    """Calls of the server as its first administrator."""

    def __init__(self, up: Up) -> None:
        self.url = up.url
        self.token = (up.data / "admin.token").read_text().strip()
        self.http = urllib3.PoolManager(timeout=urllib3.Timeout(HANG_S), retries=False)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = self.http.request(method, self.url + path, json=body, headers=headers)
        assert answer.status == 200, (method, path, answer.status, answer.data)
        return json.loads(answer.data)

    def submit(self, command: str, *, name: str = "a task", **fields: Any) -> str:
        """Submit a shell command; the task's id."""
        dimensions = {"pool": ["default"], **fields.pop("dimensions", {})}
        properties = {"command": ["sh", "-c", command], "dimensions": dimensions, "execution_timeout_s": 3600}
        request = {"name": name, "slices": [{"properties": properties, "expiration_s": 3600}], **fields}
        [task] = self.call("POST", "/api/v1/tasks", {"tasks": [request]})["tasks"]
        assert "task_id" in task, task
        return str(task["task_id"])

    def submit_job(self, name: str, tasks: dict[str, tuple[str, list[str]]]) -> str:
        """Submit a job of shell commands: label -> (command, labels that it requires). The job's id."""
        graph = {
            label: {"requires": requires, "task": {"payload": {"command": ["sh", "-c", command]}}}
            for label, (command, requires) in tasks.items()
        }
        return str(self.call("POST", "/api/v1/jobs", {"job": {"name": name, "tasks": graph}})["job_id"])

    def wait(self, *tasks: str) -> None:
        """Until the tasks have ended."""
        while not self.call("POST", "/api/v1/tasks/wait", {"task_ids": list(tasks), "mode": "all", "wait_s": 20})[
            "done"
        ]:
            pass

    def wait_for_job(self, job: str) -> str:
        """Until the job has ended; its state."""
        while not (waited := self.call("POST", f"/api/v1/jobs/{job}/wait", {"wait_s": 20}))["done"]:
            pass
        return str(waited["job"]["state"])


@pytest.fixture(scope="session")
def api(up: Up) -> Api:
    return Api(up)


def introduce(api: Api, bot_id: str) -> Callable[[], None]:
    """Let a bot appear; what is returned lets it leave."""
    made = {"name": "for a bot", "role": "bot-bootstrap", "uses": 1, "bot_pool": "*"}
    token = api.call("POST", "/api/v1/tokens", made)["token"]
    hello = {"bot_id": bot_id, "session": 1, "dimensions": {"id": [bot_id], "pool": ["fake"]}}
    credential = _post(api, "/bot/v1/handshake", hello, token)["credential"]
    gone = {"session": 1, "kind": "bot_shutdown", "ended": True}
    return lambda: _post(api, "/bot/v1/event", gone, credential)


def _post(api: Api, path: str, body: dict[str, Any], token: str) -> Any:
    answer = api.http.request("POST", api.url + path, json=body, headers={"authorization": f"Bearer {token}"})
    assert answer.status == 200, answer.data
    return json.loads(answer.data)


class Visit:
    """Opens pages in contexts of the browser. At the end nothing may have gone wrong in any of them."""

    def __init__(self, browser: Browser, url: str, token: str) -> None:
        self.browser = browser
        self.url = url
        self.token = token
        self.contexts: list[BrowserContext] = []
        self.faults: list[str] = []
        self.state: Any = None
        self.on_response: Callable[[Response], None] = lambda response: None
        """Called for every answer that a page gets."""

    def context(self, *, signed_in: bool = True, **options: Any) -> BrowserContext:
        if signed_in and self.state is None:
            self.state = self._signed_in_state()
        context = self.browser.new_context(
            base_url=self.url, storage_state=self.state if signed_in else None, reduced_motion="reduce", **options
        )
        context.set_default_timeout(HANG_MS)
        context.on("weberror", lambda error: self.faults.append(f"error in the page: {error.error}"))
        context.on("console", lambda message: self._note(message.type, message.text))
        context.on("response", lambda response: self.on_response(response))
        self.contexts.append(context)
        return context

    def _note(self, kind: str, text: str) -> None:
        # A failed request is shown by the page in words; that it failed is not a fault of the page.
        if kind == "error" and "Failed to load resource" not in text:
            self.faults.append(f"console: {text}")

    def _signed_in_state(self) -> Any:
        context = self.context(signed_in=False)
        sign_in(context.new_page(), self.token)
        return context.storage_state()

    def __call__(self, path: str, **options: Any) -> Page:
        page = self.context(**options).new_page()
        page.goto(path)
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def sign_in(page: Page, token: str) -> None:
    page.goto("/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


@pytest.fixture
def visit(browser: Browser, up: Up, api: Api) -> Iterator[Visit]:
    visit = Visit(browser, up.url, api.token)
    yield visit
    visit.close()
    assert visit.faults == []


@pytest.fixture
def each_scheme(visit: Visit) -> Callable[..., Iterator[Page]]:
    """A page in both colour schemes."""

    def both(path: str) -> Iterator[Page]:
        for scheme in ("light", "dark"):
            yield visit(path, color_scheme=scheme)

    return both
