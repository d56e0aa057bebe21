"""A server in few words: one Db, one clock, one source of ids, and the verbs with short names.

Two worlds on one database are two servers. What a test prepares in one (``group``, nonces) is handed to the
other by ``beside``. Time stands still unless a test moves ``now``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

from myrmidon.model.bot import Handshake
from myrmidon.model.ids import IdSource
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Fault, Finish, Start
from myrmidon.model.value import OutputValue
from myrmidon.scheduler import bots, claim, maintenance, report, resource_groups, submit, submit_job
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.submit import Draft
from myrmidon.scheduler.submit_job import JobSubmitted
from myrmidon.store.tables import stored_file
from tests.conftest import START

SECOND = 1_000_000
KEY = b"the servers' key"
INT = "int64"


def a_task(**given: Any) -> dict[str, Any]:
    """A command for any Linux bot; ``dims`` and ``properties`` go where they belong."""
    dims = {"pool": ["default"], "os": ["Linux"], **given.pop("dims", {})}
    properties = {"dimensions": dims, "command": ["true"], **given.pop("properties", {})}
    return {"name": "t", "slices": [{"properties": properties, **given.pop("slice", {})}], **given}


def a_function(*inputs: Any, outputs: Sequence[str] = (INT,), shared: bool = False, **given: Any) -> dict[str, Any]:
    properties = {"dimensions": {"pool": ["default"], "os": ["Linux"]}, **given.pop("properties", {})}
    return {
        "function": {"package_name": "lib", "func_name": "lib.add"},
        "slices": [{"properties": properties}],
        "inputs": list(inputs),
        "outputs": [{"type": kind, "shared": shared} for kind in outputs],
        **given,
    }


def constant(content: bytes = b"\x01", kind: str = INT) -> dict[str, Any]:
    return {"kind": "constant", "type": kind, "payload": {"inline": b64encode(content).decode()}}


def output_of(label: str, position: int = 0, kind: str = INT) -> dict[str, Any]:
    return {"kind": "output_of", "type": kind, "label": label, "position": position}


def gathered(*labels: str, kind: str = INT) -> dict[str, Any]:
    return {"kind": "gathered", "type": f"List<{kind}>", "parts": [a_part(label, kind) for label in labels]}


def a_part(label: str, kind: str = INT) -> dict[str, Any]:
    return {"label": label, "position": 0, "type": kind}


def a_node(*requires: str, task: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    return {"requires": list(requires), "task": task or a_task(), **given}


class World:
    """One server."""

    def __init__(self, db: Any, *, slot: int = 1, rules: Rules = DEFAULT_RULES) -> None:
        self.db = db
        self.now = START
        self.ids = IdSource(slot)
        self.rules = rules
        self.group = 0
        self.nonces: dict[str, int] = {}

    def beside(self, db: Any, *, slot: int) -> World:
        """Another server that knows what this one knows."""
        other = World(db, slot=slot, rules=self.rules)
        other.now, other.group, other.nonces = self.now, self.group, dict(self.nonces)
        return other

    def do(self, verb: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """A verb that wants a transaction, the time and ids."""
        return self.db.write(lambda tx: verb(tx, *args, now=self.now, ids=self.ids, **given))

    def found(self, name: str = "default") -> World:
        """Make the resource group that everything here belongs to."""
        self.group = self.do(resource_groups.create_group, name).id
        return self

    # -- tasks and jobs

    def draft(self, raw: dict[str, Any] | None = None, *, key: str | None = None) -> Draft:
        return submit.draft_task(raw or a_task(), now=self.now, ids=self.ids, request_key=key, rules=self.rules)

    def submit(self, *raws: dict[str, Any], key: str | None = None) -> list[int]:
        drafts = [self.draft(raw, key=key) for raw in raws or (a_task(),)]
        return [answer.task_id for answer in self.submit_drafts(drafts)]

    def submit_drafts(self, drafts: Sequence[Draft]) -> list[Any]:
        return self.do(submit.submit, self.group, drafts, rules=self.rules)

    def job(self, tasks: Any, *, key: str | None = None, resume: bool = False, **given: Any) -> JobSubmitted:
        raw = {"name": "job", "tasks": tasks, **given}
        draft = draft_job(raw, now=self.now, ids=self.ids, request_key=key, rules=self.rules, resume=resume)
        return submit_job.submit_job(self.db.write, self.group, draft, now=self.now, ids=self.ids, rules=self.rules)

    def resumed(self, tasks: Any) -> JobSubmitted:
        """Submit a job under one external id, as the route does with ``resume``."""
        return self.job(tasks, key="PUT job name", external_id="name", resume=True)

    def call_of(self, *inputs: Any, identity: str = "f", code: str = "0") -> dict[str, Any]:
        """The node of a function whose code is stored."""
        self.db.write(lambda tx: stored_file.insert(tx, code * 64, self.group, size=1, now=self.now))
        node = a_node(task=a_function(*inputs))
        node["task"]["function"] = {
            **node["task"]["function"],
            "code": code * 64,
            "identity": identity.encode().hex().zfill(64),
        }
        return node

    # -- bots

    def bot(self, bot_id: str = "b1", *, session: int = 1, holds: Any = (), **dims: Any) -> bots.HandshakeResult:
        has = {"id": [bot_id], "pool": ["default"], "os": ["Linux", "Debian"], **dims}
        hello = Handshake(
            bot_id=bot_id, session=session, dimensions=has, holds=list(holds), boot_id="boot", address="10.0.0.1"
        )
        return self.do(bots.handshake, hello, rules=self.rules)

    def claim(self, bot_id: str = "b1", n: int = 1, *, nonce: int | None = None, session: int = 1) -> list[Claimed]:
        if nonce is None:
            nonce = self.nonces[bot_id] = self.nonces.get(bot_id, 0) + 1
        poll = Poll(bot_id=bot_id, session=session, nonce=nonce, n=n, token_key=KEY)
        return self.do(claim.claim, poll, rules=self.rules)

    def report(self, *items: Any, bot_id: str = "b1", session: int = 1) -> list[report.Reply]:
        return self.do(report.report, bot_id, list(items), session=session, rules=self.rules)

    def running(self, bot_id: str = "b1", n: int = 1) -> list[Claimed]:
        """Claim and start."""
        got = self.claim(bot_id, n)
        assert len(got) == n
        self.report(*(start(c) for c in got), bot_id=bot_id)
        return got

    def run_all(self, bot_id: str = "b1", n: int = 100) -> None:
        """Run whatever is ready, until nothing is."""
        while got := self.claim(bot_id, n):
            self.report(*(finish(c) for c in got), bot_id=bot_id)

    # -- what was begun

    def carry_all(self) -> int:
        """Until nothing is left, except what waits for tasks to end."""
        return len(maintenance.run_due(self.db, lambda: self.now, self.ids, self.rules, timed=False))

    # -- looking

    def value(self, sql: str, **params: Any) -> Any:
        row = self.db.read(lambda tx: tx.one(sql, **params))
        return row[0] if row else None

    def all(self, sql: str, **params: Any) -> list[Any]:
        return self.db.read(lambda tx: tx.all(sql, **params))

    def state(self, task_id: int) -> str:
        return self.value("SELECT state FROM task_results WHERE id = :id", id=task_id)

    def job_state(self, job_id: int) -> str:
        return self.value("SELECT state FROM jobs WHERE id = :id", id=job_id)


def start(claimed: Claimed) -> Start:
    return Start(claimed.task_id, claimed.run, claimed.token)


def finish(claimed: Claimed, *outputs: bytes, exit_code: int = 0, **given: Any) -> Finish:
    made = [OutputValue(INT, Payload(inline=content, size=len(content))) for content in outputs]
    return Finish(
        task_id=claimed.task_id, run=claimed.run, token=claimed.token, exit_code=exit_code, duration=1.0, outputs=made,
        **given,
    )  # fmt: skip


def fault(claimed: Claimed, kind: str = "bot_error") -> Fault:
    return Fault(task_id=claimed.task_id, run=claimed.run, token=claimed.token, kind=kind)
