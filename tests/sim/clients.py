"""Simulated users: everything that can be asked of the core, at random times, repeated until it is answered."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from myrmidon.model.errors import Conflict, MyrmidonError, NotFound, UnknownValue, WrongState
from myrmidon.model.ids import show_run
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Finish
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import (
    bot_end,
    cancel,
    explain,
    extend,
    hold,
    report,
    rerun,
    retention,
    shared_values,
    submit,
    submit_job,
)
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.report import Outcome
from tests.sim.ledger import CANARY, Ledger
from tests.sim.world import Actor, Server, Violation, World

Raw = dict[str, Any]
TYPE = "bytes"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Clients(Actor):
    """All users of one seed."""

    def __init__(self, world: World, ledger: Ledger, groups: list[int], bots: list[str]) -> None:
        super().__init__("users")
        self.world = world
        self.ledger = ledger
        self.groups = groups
        self.bots = bots
        self.numbers = 0
        self.num_tasks = 0
        self.unanswered = 0
        self.group_of: dict[int, int] = {}
        self.held: set[int] = set()
        self.shared: dict[int, list[int]] = {group: [] for group in groups}
        self.aside: set[str] = set()

    # -- the plan of a seed

    def plan(self, seconds: float) -> None:
        """Spread what users want over the time in which faults strike."""
        w = self.world
        rng = w.rng
        for group in self.groups:
            self.create_value(group)
        wanted: list[tuple[Callable[[], None], int]] = [
            (self.submit_some, 19), (self.submit_function, 10), (self.submit_job, 11), (self.extend_job, 9),
            (self.cancel_task, 7), (self.cancel_job, 2), (self.cancel_tagged, 1), (self.rerun_task, 9),
            (self.rerun_job, 4), (self.hold_task, 4), (self.release_task, 8), (self.delete_job, 3),
            (self.unref, 3), (self.ref, 2), (self.create_some_value, 2), (self.ask_again, 8), (self.ask_otherwise, 2),
            (self.seal, 1), (self.note_locality, 2), (self.put_aside, 2), (self.forge, 3), (self.explain, 2),
            (self.delete_bot, 1),
        ]  # fmt: skip
        for what, most in wanted:
            for _ in range(rng.randint(most // 2, most) if most < 9 else rng.randint(most * 3 // 4, most)):
                w.after(seconds * rng.random(), what)
        w.after(seconds, self.top_up)

    def top_up(self) -> None:
        """At least 200 tasks, whatever was drawn."""
        while self.num_tasks < 200:
            self.submit_some()

    def quiet(self) -> None:
        """Faults have stopped: let go of whatever users hold back."""
        for task_id in sorted(self.held):
            self._release(task_id)
        for bot in sorted(self.aside):
            self._aside(bot, None)

    # -- calls

    def _call(self, kind: str, fn: Callable[[Server], Any], done: Callable[[Any], None]) -> None:
        self.unanswered += 1

        def heard(reply: Any) -> None:
            self.unanswered -= 1
            text = repr(reply)
            if CANARY.decode() in text:
                raise Violation(f"the answer to {kind} shows a secret")
            self.world.tell(f"users {kind} {text[:100]}")
            done(reply)

        self.world.call(self, kind, fn, heard)

    def _verb(self, kind: str, verb: Callable[..., Any], *args: Any, allowed: tuple[type, ...], **more: Any) -> None:
        """A verb of one transaction; ``allowed`` are the refusals that a user may meet."""

        def done(reply: Any) -> None:
            if isinstance(reply, MyrmidonError) and not isinstance(reply, allowed):
                raise Violation(f"{kind} was refused: {reply!r}")

        self._call(kind, lambda s: s.write(lambda tx, **given: verb(tx, *args, **more, **given)), done)

    def _key(self) -> str:
        self.numbers += 1
        return f"key-{self.numbers}"

    # -- requests

    def _dimensions(self) -> Raw:
        rng = self.world.rng
        draw = rng.random()
        if draw < 0.45:
            return {"pool": ["a"]}
        if draw < 0.6:
            return {"pool": ["a"], "os": ["Linux"]}
        if draw < 0.7:
            return {"pool": ["a"], "os": ["Linux|Mac"]}
        if draw < 0.85:
            return {"pool": ["b"]}
        if draw < 0.97:
            return {"pool": ["a"], "gpu": ["1"]}
        return {"pool": ["a"], "id": [rng.choice(self.bots[:10])]}

    def _slices(self, properties: Raw) -> list[Raw]:
        rng = self.world.rng
        dimensions = self._dimensions()
        last = {
            "properties": {**properties, "dimensions": dimensions},
            "expiration_s": rng.choice((40, 120, 240)),
            "wait_for_capacity": rng.random() < 0.85,
        }
        if rng.random() < 0.8:
            return [last]
        pool = dimensions["pool"]
        rare = rng.choice(({"pool": pool, "os": ["Plan9"]}, {"pool": pool, "gpu": ["2"]}, {"pool": pool, "gpu": ["1"]}))
        if rare == dimensions:
            return [last]
        first = {
            "properties": {**properties, "dimensions": rare},
            "expiration_s": rng.choice((5, 20)),
            "wait_for_capacity": rng.random() < 0.5,
        }
        return [first, last]

    def _task(self, *, function: bool = False, inputs: list[Raw] | None = None) -> Raw:
        rng = self.world.rng
        self.numbers += 1
        self.num_tasks += 1
        kind = rng.choice(("good", "good", "any", "any", "flaky", "flaky", "slow", "bad"))
        idempotent = rng.random() < 0.25
        raw: Raw = {"retries": rng.choice((0, 0, 1, 1, 2)), "lease_s": 30, "priority": rng.choice((50, 100, 100, 200))}
        properties: Raw = {"idempotent": idempotent}
        if function:
            outputs = rng.choice((0, 1, 1, 2))
            raw["function"] = {"package_name": "p", "func_name": f"f{outputs}"}
            raw["inputs"] = inputs or []
            raw["outputs"] = [{"type": TYPE, "shared": rng.random() < 0.3} for _ in range(outputs)]
        else:
            properties["command"] = ["echo", str(rng.randrange(6) if idempotent else self.numbers)]
        if rng.random() < 0.2:
            raw["reruns"] = rng.choice((1, 2))
        if rng.random() < 0.12:
            kind = "straggler"
            raw["max_instances"] = rng.choice((2, 3))
            raw["soft_timeout_s"] = rng.choice((5, 12))
        if rng.random() < 0.1:
            raw["deadline_s"] = rng.choice((20, 60, 200))
        if rng.random() < 0.3:
            raw["tags"] = [f"sweep:{rng.randrange(3)}"]
        raw["name"] = f"{kind}-{self.numbers}"
        if rng.random() < 0.1:
            secret = CANARY + b"-%d" % self.numbers
            raw["secret_bytes"] = encoded(secret)
            self.ledger.secrets[raw["name"]] = secret
        raw["slices"] = self._slices(properties)
        return raw

    def _some_inputs(self, group: int) -> list[Raw]:
        rng = self.world.rng
        inputs: list[Raw] = []
        if rng.random() < 0.6:
            content = b"c%d" % rng.randrange(3)
            inputs.append({"kind": "constant", "type": TYPE, "payload": {"inline": encoded(content)}})
        if self.shared[group] and rng.random() < 0.5:
            value = rng.choice(self.shared[group])
            inputs.append({"kind": "shared", "type": TYPE, "shared_value_id": value})
        return inputs

    def _graph(self, group: int, n: int, known: dict[str, Raw], prefix: str) -> dict[str, Raw]:
        """A random graph: later nodes wait for some of the earlier ones, functions read what functions wrote."""
        rng = self.world.rng
        nodes: dict[str, Raw] = {}
        before = list(known)
        for number in range(n):
            label = f"{prefix}{number}"
            parents = rng.sample(before, min(len(before), rng.choice((0, 1, 1, 1, 2, 3)))) if before else []
            function = rng.random() < 0.5
            inputs: list[Raw] = []
            if function:
                inputs = self._some_inputs(group)
                writers = [parent for parent in parents if known[parent].get("outputs") and rng.random() < 0.8]
                parts = [{"type": TYPE, "label": parent, "position": 0} for parent in writers]
                if rng.random() < 0.3:
                    inputs.append({"kind": "gathered", "type": f"List<{TYPE}>", "parts": parts})
                else:
                    inputs += [{"kind": "output_of", **part} for part in parts]
                parents = [parent for parent in parents if parent not in writers or rng.random() < 0.5]
            task = self._task(function=function, inputs=inputs)
            node: Raw = {"requires": parents, "task": task}
            if rng.random() < 0.25 and not any(given["kind"] in ("output_of", "gathered") for given in inputs):
                node["requires_policy"] = "all-resolved"
            if rng.random() < 0.06:
                node["hold"] = True
            nodes[label] = node
            known[label] = task
            before.append(label)
        return nodes

    # -- submitting

    def submit_some(self) -> None:
        group = self.world.rng.choice(self.groups)
        self._submit(group, [(self._key(), self._task()) for _ in range(self.world.rng.choice((1, 2, 3, 6)))])

    def submit_function(self) -> None:
        group = self.world.rng.choice(self.groups)
        self._submit(group, [(self._key(), self._task(function=True, inputs=self._some_inputs(group)))])

    def spawn(self, bot: Any, key: tuple[int, int]) -> None:
        """A running task triggers another one; refused when the server thinks that it does not run any more."""
        raw = {**self._task(), "parent": show_run(*key), "detached": self.world.rng.random() < 0.3}
        group = self.group_of.get(key[0], self.groups[0])
        self._submit(group, [(self._key(), raw)], allowed=(WrongState, NotFound))

    def _submit(self, group: int, items: list[tuple[str, Raw]], allowed: tuple[type, ...] = ()) -> None:
        def do(server: Server) -> Any:
            now, rules = server.now, self.world.rules
            drafts = [
                submit.draft_task(raw, now=now, ids=server.ids, request_key=key, rules=rules) for key, raw in items
            ]
            return server.write(lambda tx, **given: submit.submit(tx, group, drafts, **given))

        def done(replies: Any) -> None:
            if isinstance(replies, MyrmidonError):
                raise Violation(f"a submit was refused: {replies!r}")
            for (key, raw), reply in zip(items, replies, strict=True):
                if isinstance(reply, (*allowed, UnknownValue)):
                    continue  # a shared value may have gone meanwhile
                if isinstance(reply, MyrmidonError):
                    raise Violation(f"the submit {key} was refused: {reply!r}")
                self.ledger.acknowledged(key, group, raw, reply)
                self.group_of[reply.task_id] = group

        self._call("submit", do, done)

    def submit_job(self) -> None:
        rng = self.world.rng
        group = rng.choice(self.groups)
        size = rng.choice((3, 6, 10, 16, 24))
        known: dict[str, Raw] = {}
        raw = {
            "name": f"job-{self.numbers}",
            "failure_policy": rng.choice(("continue", "continue", "fail-fast")),
            "max_num_retries": rng.choice((0, 0, 1, 2)),
            "tasks": self._graph(group, size, known, "n"),
        }
        if rng.random() < 0.15:
            raw["deadline_s"] = rng.choice((60, 240))
        self._submit_job(self._key(), group, raw)

    def _submit_job(self, key: str, group: int, raw: Raw) -> None:
        def do(server: Server) -> Any:
            now, ids, rules = server.now, server.ids, self.world.rules
            draft = draft_job(raw, now=now, ids=ids, request_key=key, rules=rules)
            return submit_job.submit_job(server.db.write, group, draft, now=now, ids=ids, rules=rules)

        def done(reply: Any) -> None:
            if isinstance(reply, (UnknownValue, WrongState)):
                return  # a shared value may have gone meanwhile, or the job came too slowly
            if isinstance(reply, MyrmidonError):
                raise Violation(f"the job {key} was refused: {reply!r}")
            self.ledger.acknowledged_job(key, group, raw, reply)
            self.group_of[reply.job_id] = group
            self._noted(reply.task_ids, raw)

        self._call("submit_job", do, done)

    def _noted(self, task_ids: dict[str, int], raw: Raw) -> None:
        for label, node in raw["tasks"].items():
            if node.get("hold") and label in task_ids:
                self.held.add(task_ids[label])

    def extend_job(self) -> None:
        job_id = self._some_job()
        if job_id is None:
            return
        rng = self.world.rng
        group = self.group_of[job_id]
        known = dict(self.ledger.definitions[job_id])
        self.numbers += 1
        raw = {"tasks": self._graph(group, rng.choice((1, 2, 5)), known, f"x{self.numbers}-")}

        def done(reply: Any) -> None:
            if isinstance(reply, (WrongState, NotFound, UnknownValue)):
                return
            if isinstance(reply, MyrmidonError):
                raise Violation(f"the extension of {job_id} was refused: {reply!r}")
            self.ledger.extended(job_id, raw, reply)
            self._noted(reply.task_ids, raw)

        self._call(
            "extend",
            lambda s: s.write(lambda tx, **given: extend.extend(tx, job_id, raw, group_id=group, **given)),
            done,
        )

    # -- asking again

    def ask_again(self) -> None:
        """The same key and body give the same answer, however late."""
        rng = self.world.rng
        asked = self.ledger.asked_jobs if rng.random() < 0.3 else self.ledger.asked
        if not asked:
            return
        key = rng.choice(sorted(asked))
        group, raw = asked[key]
        if asked is self.ledger.asked_jobs:
            if self.ledger.jobs[key] not in self.ledger.deleted_jobs:
                self._submit_job(key, group, raw)
        else:
            self._submit(group, [(key, raw)])

    def ask_otherwise(self) -> None:
        """The same key with another body is refused."""
        if not self.ledger.asked:
            return
        key = self.world.rng.choice(sorted(self.ledger.asked))
        group, raw = self.ledger.asked[key]
        other = {**raw, "priority": raw["priority"] + 1}

        def do(server: Server) -> Any:
            draft = submit.draft_task(other, now=server.now, ids=server.ids, request_key=key, rules=self.world.rules)
            return server.write(lambda tx, **given: submit.submit(tx, group, [draft], **given))

        def done(replies: Any) -> None:
            if isinstance(replies, MyrmidonError) or not isinstance(replies[0], Conflict):
                raise Violation(f"the key {key} was taken with another body: {replies}")

        self._call("submit other", do, done)

    # -- choosing

    def _some_task(self) -> int | None:
        tasks = self.ledger.all_tasks
        return self.world.rng.choice(tasks) if tasks else None

    def _some_job(self) -> int | None:
        jobs = [j for j in self.ledger.jobs.values() if j not in self.ledger.deleted_jobs]
        return self.world.rng.choice(sorted(set(jobs))) if jobs else None

    # -- changing minds

    def cancel_task(self) -> None:
        wanted = sorted({t for t in (self._some_task() for _ in range(3)) if t is not None})
        if wanted:
            kill = self.world.rng.random() < 0.7
            self._verb("cancel", cancel.cancel, wanted, kill_running=kill, allowed=())

    def cancel_job(self) -> None:
        if (job_id := self._some_job()) is not None:
            self._verb("cancel_job", cancel.cancel_job, job_id, allowed=(NotFound,))

    def cancel_tagged(self) -> None:
        rng = self.world.rng
        tags = [f"sweep:{rng.randrange(3)}"]
        group = rng.choice(self.groups)
        kill = rng.random() < 0.5
        self._verb("cancel_tagged", cancel.cancel_tagged, tags, group_id=group, kill_running=kill, allowed=())

    def rerun_task(self) -> None:
        if (task_id := self._some_task()) is not None:
            rng = self.world.rng
            how = {"force": rng.random() < 0.7, "cascade": rng.random() < 0.5, "kill": rng.random() < 0.5}
            self._verb("rerun", rerun.rerun, task_id, allowed=(WrongState, NotFound), **how)

    def rerun_job(self) -> None:
        if (job_id := self._some_job()) is not None:
            full = self.world.rng.random() < 0.4
            self._verb("rerun_job", rerun.rerun_job, job_id, full=full, allowed=(WrongState, NotFound))

    def hold_task(self) -> None:
        if (task_id := self._some_task()) is not None:
            self.held.add(task_id)
            self._verb("hold", hold.hold, task_id, allowed=(WrongState, NotFound))

    def release_task(self) -> None:
        if self.held:
            self._release(self.world.rng.choice(sorted(self.held)))

    def _release(self, task_id: int) -> None:
        self._verb("release", hold.release, task_id, allowed=(NotFound,))

    def seal(self) -> None:
        if (job_id := self._some_job()) is not None:
            group = self.group_of[job_id]

            def do(server: Server) -> Any:
                return server.write(lambda tx, **given: extend.seal(tx, job_id, group_id=group, **given))

            self._call("seal", do, lambda reply: None)

    def delete_job(self) -> None:
        job_id = self._some_job()
        if job_id is None:
            return
        group = self.group_of[job_id]

        def do(server: Server) -> Any:
            # Until there is an answer nobody can tell from outside whether the job is there.
            known = job_id in self.ledger.deleted_jobs
            self.ledger.deleted_jobs.add(job_id)
            try:
                server.write(lambda tx, **given: retention.delete_job(tx, job_id, group_id=group, **given))
            except WrongState:
                if not known:
                    self.ledger.deleted_jobs.discard(job_id)
                raise
            return "deleted"

        def done(reply: Any) -> None:
            if isinstance(reply, MyrmidonError) and not isinstance(reply, (WrongState, NotFound)):
                raise Violation(f"delete_job was refused: {reply!r}")

        self._call("delete_job", do, done)

    def explain(self) -> None:
        if (task_id := self._some_task()) is not None:
            self._call("explain", lambda s: s.db.read(lambda tx: explain.explain(tx, task_id)), lambda reply: None)

    # -- shared values

    def create_some_value(self) -> None:
        self.create_value(self.world.rng.choice(self.groups))

    def create_value(self, group: int) -> None:
        content = b"c shared"

        def do(server: Server) -> Any:
            return server.write(
                lambda tx, now, ids, rules: shared_values.create_value(
                    tx, GroupOwner(group), TYPE, Payload(inline=content, size=len(content)), now=now, ids=ids
                )
            )

        self._call("create_value", do, lambda value: self.shared[group].append(value.id))

    def note_locality(self) -> None:
        rng = self.world.rng
        group = rng.choice(self.groups)
        if not self.shared[group]:
            return
        value, address = rng.choice(self.shared[group]), f"10.0.0.{rng.randrange(4)}"

        def do(server: Server) -> Any:
            return server.db.write(lambda tx: shared_values.change_localities(tx, value, add=[address]))

        self._call("locality", do, lambda reply: None)

    def unref(self) -> None:
        group = self.world.rng.choice(self.groups)
        if not self.shared[group]:
            return
        value = self.world.rng.choice(self.shared[group])

        def do(server: Server) -> Any:
            return server.db.write(lambda tx: shared_values.unref_value(tx, GroupOwner(group), value))

        self._call("unref", do, lambda reply: None)

    def ref(self) -> None:
        group = self.world.rng.choice(self.groups)
        job_id = self._some_job()
        if not self.shared[group] or job_id is None:
            return
        value = self.world.rng.choice(self.shared[group])
        owner = JobOwner(group, job_id)
        self._call(
            "ref", lambda s: s.db.write(lambda tx: shared_values.ref_value(tx, owner, value)), lambda reply: None
        )

    # -- the fleet

    def put_aside(self) -> None:
        bot = self.world.rng.choice(self.bots)
        self.aside.add(bot)
        self._aside(bot, "simulated")

    def _aside(self, bot: str, why: str | None) -> None:
        self._verb("quarantine", fleet.quarantine, bot, why, allowed=(NotFound,))

    def delete_bot(self) -> None:
        self._verb("delete_bot", bot_end.delete_bot, self.world.rng.choice(self.bots), allowed=(NotFound,))

    def forge(self) -> None:
        """Somebody speaks of a run that is not theirs, or with the wrong token."""
        if not self.ledger.claims:
            return
        rng = self.world.rng
        (task_id, run), (owner, _, _) = rng.choice(list(self.ledger.claims.items()))
        liar = rng.choice(self.bots)
        lie = Finish(task_id=task_id, run=run, token="0" * 64, exit_code=0, duration=9.0)

        def done(replies: Any) -> None:
            if isinstance(replies, MyrmidonError) or replies[0].outcome != Outcome.UNKNOWN:
                raise Violation(f"{liar} was believed about {owner}'s run {task_id}.{run}: {replies}")
            self.world.faults.note("forged report refused")

        self._call(
            "forge",
            lambda s: s.write(lambda tx, **given: report.report(tx, liar, [lie], session=0, **given)),
            done,
        )
