"""Serves the web page: one document for all its addresses, and the files that it loads.

The page is one application, which shows what the address says. Its Content-Security-Policy allows nothing inline and
nothing from other servers, and no other site may show it in a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from myrmidon.model.errors import NotFound
from myrmidon.server.calls import ANYONE, PAGE, Answer, Call, Handler, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.web.files import ASSETS, INDEX, PageFile, PageFiles

FILES: Final = PageFiles()
POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
SECURITY: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
FOREVER: Final = "public, max-age=31536000, immutable"
ADDRESSES: Final = ("/", "/login", "/auth/link")
SECTIONS: Final = ("/tasks", "/jobs", "/functions", "/bots", "/queues", "/values", "/system")
"""Parts of the page with addresses of their own below."""
ROOT_FILES: Final = ("/favicon.svg", "/favicon.ico", "/robots.txt")
NOT_BUILT: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Myrmidon</title>
<h1>The web page was not built</h1>
<p>This server runs from a copy of the source code, and its web page has to be built once:</p>
<pre>make ui</pre>
<p>This needs Node, of the machine or from PyPI; then load this page again. Installed packages of Myrmidon contain
the page.</p>
<p>Everything else works: the command line (<code>myrmidon --help</code>) and the API (<a href="/api/docs">its
description</a>).</p>
</html>
"""


async def show_page(context: ServerContext, call: Call) -> Answer:
    """The document of the page, the same for all its addresses."""
    document = FILES.get(INDEX)
    if document is None:
        headers = {**SECURITY, "content-type": "text/html; charset=utf-8", "cache-control": "no-store"}
        return Answer(headers=headers, body=NOT_BUILT)
    return _answer(document, call, cache="no-cache")


async def show_asset(context: ServerContext, call: Call) -> Answer:
    """A file with a digest in its name."""
    name = ASSETS + call.params["name"]
    return _answer(_require(name), call, cache=FOREVER)


async def show_root_file(name: str, context: ServerContext, call: Call) -> Answer:
    """One of the few files whose names browsers and robots know."""
    return _answer(_require(name), call, cache="no-cache")


def _require(name: str) -> PageFile:
    if (file := FILES.get(name)) is None:
        raise NotFound("page", f"/{name[:200]}")
    return file


def _answer(file: PageFile, call: Call, *, cache: str) -> Answer:
    encoding, content = file.best(call.headers.get("accept-encoding", ""))
    headers = {**SECURITY, "cache-control": cache, "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in call.headers.get("if-none-match", ""):
        return Answer(status=304, headers={**headers, "content-type": file.media}, body=b"")
    if encoding:
        headers["content-encoding"] = encoding
    return Answer(headers={**headers, "content-type": file.media}, body=content)


def _page(path: str, call: Handler, summary: str = "The web page") -> Route:
    return Route("GET", path, call, ANYONE, summary, media="text/html; charset=utf-8", style=PAGE)


ROUTES: Final = (
    *(_page(path, show_page) for path in (*ADDRESSES, *SECTIONS)),
    *(_page(f"{path}/{{rest:path}}", show_page) for path in SECTIONS),
    _page("/assets/{name}", show_asset, "A file of the web page"),
    *(_page(path, partial(show_root_file, path[1:]), "A file of the web page") for path in ROOT_FILES),
)
