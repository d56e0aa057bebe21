"""The web page's sources: every change that the API can make is on the page; its packages can be installed."""

from __future__ import annotations

import json
import re
from typing import Any

from myrmidon.server.facades import every_route
from tests.architecture import source

UI = source.ROOT / "ui"
CALLS = {"POST": r'(?:post\(|"post",)', "PUT": r'(?:put\(|"put",)', "DELETE": r'(?:remove\(|"delete",)'}
NOT_ON_THE_PAGE = {
    "POST /api/v1/jobs": "a graph is written in a file or a program: `myrmidon job submit`",
    "POST /api/v1/jobs/batch": "as POST /api/v1/jobs, for programs that submit several graphs together",
    "PUT /api/v1/jobs/{id}": "as POST /api/v1/jobs, with an id that the caller chooses",
    "POST /api/v1/jobs/{id}/extend": "running tasks add tasks to their own job",
    "PUT /api/v1/tasks/{id}/annotation": "a task writes its own summary",
    "POST /api/v1/jobs/{id}/meta": "tasks of a job write texts for each other",
    "POST /api/v1/files/missing": "programs ask this before they upload inputs",
    "PUT /api/v1/files/{digest}": "programs upload inputs, and bots results",
    "POST /api/v1/values": "programs store values that they share",
    "POST /api/v1/values/{id}/ref": "programs keep a value that they use",
    "POST /api/v1/values/{id}/unref": "programs give up a value that they have kept",
    "POST /api/v1/values/{id}/localities": "programs and bots tell where a value lies",
    "POST /api/v1/config": "code for the whole fleet is not edited in a browser: `myrmidon config put`",
    "POST /auth/links": "a link is made where there is a token already: `myrmidon open`",
}
"""Changes that are made elsewhere, and why."""


def test_every_change_can_be_made_on_the_page_or_has_a_reason_why_not():
    text = "\n".join(file.read_text() for file in sorted((UI / "src").rglob("*.ts*")))
    changes = [route for route in every_route() if route.mutates and route.path.startswith(("/api/v1/", "/auth/"))]
    missing = {
        f"{route.method} {route.path}"
        for route in changes
        if not re.search(rf'{CALLS[route.method]}\s*"{re.escape(route.path)}"', text)
    }
    assert len(changes) > 30
    assert missing == set(NOT_ON_THE_PAGE)


def test_the_lock_has_the_packages_of_every_platform_and_names_no_other_registry():
    packages: dict[str, dict[str, Any]] = json.loads((UI / "package-lock.json").read_text())["packages"]
    wanted = {name for package in packages.values() for name in package.get("optionalDependencies", {})}
    assert {name for name in wanted if not any(path.endswith(f"node_modules/{name}") for path in packages)} == set()
    fetched = {path: package for path, package in packages.items() if path and not package.get("inBundle")}
    assert [path for path, package in fetched.items() if "integrity" not in package] == []
    addresses = {package["resolved"] for package in fetched.values() if "resolved" in package}
    assert [address for address in addresses if not address.startswith("https://registry.npmjs.org/")] == []
