"""Texts that would be executed if a page took them for HTML, and a page that sees whether one was.

`FIELDS` is the table of what others write and a page shows. Each field has 200 payloads of its own: the number that a
payload would put into ``window.canary`` names its field and the payload, so that a text on a page proves that this
payload of this field has reached it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

from playwright.sync_api import Page, expect

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
T = TypeVar("T")
NUMBER = len(_SHAPES) * len(_WRAPS)
BETWEEN = "\n-->\n"
"""Between payloads in one text: it ends the comment that some of them begin, else that would hide the next one."""


def never(text: str) -> bool:
    return False


def always(text: str) -> bool:
    return True


def begins_with_space(text: str) -> bool:
    return text[0].isspace()


def has_empty_step(text: str) -> bool:
    return "//" in text


def is_no_bot_id(text: str) -> bool:
    return "/" in text or "\u2028" in text


def is_no_version(text: str) -> bool:
    return len(text) > 64


def is_no_query(text: str) -> bool:
    return " " in text or not text.isascii()


class Field(NamedTuple):
    """Where a field is shown, and which payloads the server refuses for it."""

    shown: str
    refused: Callable[[str], bool] = never


FIELDS = {
    # tasks
    "name of a task": Field("/tasks, /tasks/ID, /bots, /bots/ID, /, Find"),
    "user of a task": Field("/tasks, /tasks/ID"),
    "tag of a task": Field("/tasks, /tasks/ID, filters"),
    "pool": Field("/queues", begins_with_space),
    "dimension of a task": Field("/tasks/ID: request, why it waits; /queues", begins_with_space),
    "key of a dimension": Field("nowhere: refused", always),
    "argument of a command": Field("/tasks/ID: request, Copy as, Edit and rerun"),
    "value of the environment": Field("/tasks/ID: request, Copy as, Edit and rerun"),
    "key of the environment": Field("error message of Edit and rerun", always),
    "folder of a command": Field("/tasks/ID: request", has_empty_step),
    "name of an output file": Field("nowhere: refused", always),
    "name of a cache": Field("nowhere: refused", always),
    "key of metadata": Field("/tasks/ID: request"),
    "value of metadata": Field("/tasks/ID: request"),
    "external id of a task": Field("nowhere: refused", always),
    "summary in Markdown": Field("/tasks/ID"),
    # runs
    "line of stdout": Field("/tasks/ID: log and its search"),
    "line of stderr": Field("/tasks/ID: log; /jobs/ID: failures"),
    "message of a fault": Field("/tasks/ID: why it ended"),
    "type of an exception": Field("/tasks/ID: why it ended"),
    "message of an exception": Field("/tasks/ID: why it ended; /functions/NAME"),
    "traceback": Field("/tasks/ID: why it ended"),
    # jobs, functions and values
    "name of a job": Field("/jobs, /jobs?view=names, /"),
    "tag of a job": Field("/jobs"),
    "external id of a job": Field("nowhere: refused", always),
    "label": Field("/jobs/ID: graph, times, tasks"),
    "label of a failed task": Field("/jobs/ID: failures, what differs"),
    "key of a job's metadata": Field("/jobs/ID"),
    "value of a job's metadata": Field("/jobs/ID"),
    "name of a text of a job": Field("nowhere: refused", always),
    "text of a job": Field("/jobs/ID"),
    "name of a function": Field("/functions"),
    "module of a function": Field("/functions"),
    "file name of a library": Field("nowhere: refused", always),
    "type of a value": Field("nowhere: refused", always),
    "value": Field("/tasks/ID: inputs"),
    # bots
    "id of a bot": Field("/bots, /bots/ID", is_no_bot_id),
    "dimension of a bot": Field("/bots, /bots/ID", begins_with_space),
    "reason of a quarantine": Field("/bots, /bots/ID"),
    "reason of a maintenance": Field("/bots, /bots/ID"),
    "version of a bot": Field("/bots, /bots/ID", is_no_version),
    "state of a bot": Field("/bots/ID: everything it reports"),
    "cache of a bot": Field("/bots/ID: named caches"),
    "event of a bot": Field("/bots/ID: timeline"),
    # the system
    "name of a token": Field("/system/tokens"),
    "address of a webhook": Field("/system/webhooks", is_no_query),
    "name of a resource group": Field("/values", begins_with_space),
    "name of a file of the configuration": Field("nowhere: refused", always),
    "text of a file of the configuration": Field("/system/config"),
    "reason of a revert": Field("/system/releases"),
    # addresses
    "id of a task in the address": Field("/tasks/ID that does not exist"),
    "id of a job in the address": Field("/jobs/ID that does not exist"),
    "name of a job in the address": Field("/jobs/name/NAME"),
    "id of a bot in the address": Field("/bots/ID that does not exist"),
    "function in the address": Field("/functions/NAME that nobody has called"),
    "filters of the address": Field("/tasks: tag, name, pool, bot, user, group, state, sort, hash"),
    "filters of bots": Field("/bots: dimension, state"),
}


def payloads(field: str) -> list[str]:
    """The 200 payloads of a field."""
    first = (10 + list(FIELDS).index(field)) * 1000
    return [
        wrap.format(shape.format(f"window.canary={first + n}"))
        for n, (shape, wrap) in enumerate(product(_SHAPES, _WRAPS))
    ]


def accepted(field: str) -> list[str]:
    """The payloads of a field that the server accepts."""
    return [text for text in payloads(field) if not FIELDS[field].refused(text)]


def groups_of(things: Sequence[T], size: int) -> list[Sequence[T]]:
    return [things[first : first + size] for first in range(0, len(things), size)]


def _forms(text: str) -> set[str]:
    """A text as it is, and as JSON, as a word of a command line and as a Python literal quote it."""
    return {
        text,
        json.dumps(text, ensure_ascii=False)[1:-1],
        shlex.quote(text),
        text.replace("'", r"'\''"),
        repr(text)[1:-1],
    }


_WATCH = """
window.reports = [];
document.addEventListener('securitypolicyviolation', event =>
    window.reports.push(`${event.violatedDirective} ${event.sample} ${event.sourceFile}`));
"""
_ADDRESSES = ["href", "src", "action", "formaction", "data", "xlink:href", "srcdoc"]
_EXECUTABLE = f"""() => [...document.querySelectorAll('*')].flatMap(element => [
    ...(element.matches('iframe, object, embed, base, template, marquee, math, meta[http-equiv]')
        || element.matches('main script, main style') ? [element.outerHTML] : []),
    ...[...element.attributes]
        .filter(one => /^on/i.test(one.name)
            || ({json.dumps(_ADDRESSES)}.includes(one.name) && /^\\s*(javascript|data):/i.test(one.value)))
        .map(one => `${{element.tagName}} ${{one.name}}=${{one.value}}`),
])"""
_TEXTS = """() => [
    document.title,
    document.body.textContent,
    ...[...document.querySelectorAll('[title], [aria-label], input, textarea, option')]
        .flatMap(one => [one.getAttribute('title'), one.getAttribute('aria-label'), one.value]),
].filter(Boolean).join('\\n')"""


class Screen:
    """A page that remembers every text that it has shown. Nothing of it may be executed."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.texts: list[str] = []
        page.add_init_script(_WATCH)

    def open(self, path: str, shown: str = "") -> None:
        """Go to an address, and read the page when the text is there and nothing is being loaded."""
        self.page.goto(path)
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()
        if shown:
            expect(self.page.get_by_text(shown).first).to_be_visible()
        expect(self.page.get_by_text("Loading …")).to_have_count(0)
        self.read()

    def read(self) -> None:
        self.check()
        self.texts.append(self.page.evaluate(_TEXTS))

    def check(self) -> None:
        """Nothing was executed, the policy has refused nothing, no text has become an element or an attribute."""
        assert self.page.evaluate("window.canary") is None
        assert self.page.evaluate("window.reports") == []
        assert self.page.evaluate(_EXECUTABLE) == []

    def missing(self, field: str) -> list[str]:
        """Payloads that the server has accepted for a field and that no page has shown."""
        every = "\n".join(self.texts)
        return [text for text in accepted(field) if not any(form in every for form in _forms(text))]

    def has_shown(self, fields: Iterable[str]) -> None:
        missing = {field: self.missing(field) for field in fields}
        assert not any(missing.values()), {field: (len(texts), texts[:3]) for field, texts in missing.items()}
