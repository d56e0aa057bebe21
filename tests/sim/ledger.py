"""What the callers know: the books that the database's own account is compared with.

The invariants of the store are checked elsewhere; here is what only somebody outside can say. What was acknowledged
must be there, what was handed to one bot must not be taken from another, bytes must come back as they were written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

from myrmidon.model.states import TaskState
from myrmidon.model.task_result import Finish, Start
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.report import Outcome
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import outbox
from tests.sim.world import Server, Violation

CANARY = b"canary-in-the-mine"
TAKEN = (Outcome.ACCEPTED, Outcome.REPEATED)
Run = tuple[int, int]

FUNCTION = """
    SELECT r.forced, r.resolves_all FROM task_results r WHERE r.id = :id
"""
WINNER = "SELECT state FROM task_runs WHERE task_id = :task AND run = :run"
EXISTING = "SELECT id, state FROM task_results"
EXISTING_JOBS = "SELECT id FROM jobs WHERE staged = 0"
LIVE_RUNS = "SELECT task_id, run, bot_id, generation, started_at, state, reason, ended_at, lease FROM task_runs"
RESUMED = "SELECT value FROM shared_numbers WHERE name = 'resumed_at'"
ONCE = """
    SELECT r.task_id, r.generation, COUNT(*) FROM task_runs r JOIN task_requests q ON q.id = r.task_id
     WHERE q.retries = 0 AND q.max_num_retries = 0 AND q.max_num_instances = 1 AND r.started_at IS NOT NULL
     GROUP BY r.task_id, r.generation HAVING COUNT(*) > 1
"""
WON = """
    SELECT task_id, generation, COUNT(*) FROM task_runs WHERE state = 'SUCCEEDED'
     GROUP BY task_id, generation HAVING COUNT(*) > 1
"""


class Ledger:
    """One seed's books."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.claims: dict[Run, tuple[str, int, int]] = {}
        self.polls: dict[tuple[str, int, int], set[Run]] = {}
        self.secrets: dict[str, bytes] = {}
        self.started: set[Run] = set()
        self.won: set[Run] = set()
        self.written: dict[Run, bytearray] = defaultdict(bytearray)
        self.acked: dict[Run, list[tuple[int, bytes]]] = defaultdict(list)
        self.refused_logs: set[Run] = set()
        self.tasks: dict[str, int] = {}
        self.jobs: dict[str, int] = {}
        self.labels: dict[int, dict[str, int]] = defaultdict(dict)
        self.definitions: dict[int, dict[str, Any]] = defaultdict(dict)
        self.asked: dict[str, tuple[int, Any]] = {}
        self.asked_jobs: dict[str, tuple[int, Any]] = {}
        self.all_tasks: list[int] = []
        self.deleted_jobs: set[int] = set()
        self.position = 0
        self.seqs: dict[int, int] = {}
        self.states: dict[int, str] = {}
        self.numbered = 0

    # -- what tasks are like, by their name

    def seconds_of(self, name: str, rng: Random) -> float:
        kind = name.partition("-")[0]
        if kind == "slow":
            return 20 + 40 * rng.random()
        if kind == "straggler":
            return rng.choice((3.0, 60.0, 90.0))
        return 0.3 + 6 * rng.random()

    def failures_of(self, name: str) -> float:
        kind = name.partition("-")[0]
        return {"flaky": 0.5, "bad": 0.95, "good": 0.06}.get(kind, 0.12)

    # -- answers to submits

    def acknowledged(self, key: str, group: int, raw: Any, reply: Any) -> None:
        if self.tasks.setdefault(key, reply.task_id) != reply.task_id:
            raise Violation(f"the key {key} stood for task {self.tasks[key]} and now for {reply.task_id}")
        if key not in self.asked:
            self.asked[key] = (group, raw)
            self.all_tasks.append(reply.task_id)

    def acknowledged_job(self, key: str, group: int, raw: Any, reply: Any) -> None:
        known = self.jobs.setdefault(key, reply.job_id)
        if known != reply.job_id:
            if known in self.deleted_jobs:
                self.jobs[key] = reply.job_id
            else:
                raise Violation(f"the key {key} stood for job {known} and now for {reply.job_id}")
        if key not in self.asked_jobs or known != reply.job_id:
            self.asked_jobs[key] = (group, raw)
            self._grown(reply.job_id, raw, reply.task_ids)

    def extended(self, job_id: int, raw: Any, reply: Any) -> None:
        self._grown(job_id, raw, reply.task_ids)

    def _grown(self, job_id: int, raw: Any, task_ids: dict[str, int]) -> None:
        labels = self.labels[job_id]
        for label, node in raw["tasks"].items():
            if labels.setdefault(label, task_ids[label]) != task_ids[label]:
                raise Violation(f"label {label} of job {job_id} was {labels[label]} and is {task_ids[label]}")
            self.definitions[job_id][label] = node["task"]
            self.all_tasks.append(task_ids[label])

    # -- claims and reports, noted where the server has done them

    def handed_out(self, server: Server, poll: Poll, got: list[Claimed]) -> None:
        who = (poll.bot_id, poll.session, poll.nonce)
        keys = {(c.task_id, c.run) for c in got}
        known = self.polls.get(who)
        if known:
            if got:
                server.world.faults.note("claim repeated by its nonce")
            if not keys <= known:
                raise Violation(f"the nonce {who} got {keys - known} only when it was used again")
        else:  # a claim that found nothing was not stored; repeated, it is a new one
            self.polls[who] = keys
        for c in got:
            if self.claims.setdefault((c.task_id, c.run), who) != who:
                raise Violation(f"run {c.task_id}.{c.run} was handed to {self.claims[c.task_id, c.run]} and to {who}")
            if (c.secret_bytes is not None) != (c.work.name in self.secrets):
                raise Violation(f"the secret of {c.work.name} did not come with its claim, or came uncalled for")
            if c.secret_bytes is not None and c.secret_bytes != self.secrets[c.work.name]:
                raise Violation(f"{c.work.name} got another task's secret")
            if c.inputs:
                self._check_inputs(server.db, c)

    def _check_inputs(self, db: Db, c: Claimed) -> None:
        """A function sees what the winners among its parents wrote, and all of it."""
        forced, any_end = db.read(lambda tx: tx.one(FUNCTION, id=c.task_id)) or (1, 1)
        for value in [one for given in c.inputs for one in ([given] if given.parts is None else given.parts)]:
            if value.size is None:
                if not forced and not any_end:
                    raise Violation(f"task {c.task_id} runs before its input {value.id} is written")
                continue
            text = (value.payload or b"").decode()
            if text.startswith("c"):
                continue
            task, run = map(int, text.split("."))
            row = db.read(partial(_winner, task=task, run=run))
            if row is not None and row[0] != TaskState.SUCCEEDED:
                raise Violation(f"task {c.task_id} reads what run {task}.{run} wrote, which ended {row[0]}")

    def reported(self, bot: str, items: list[Any], replies: list[Any]) -> None:
        for item, reply in zip(items, replies, strict=True):
            if reply.outcome not in TAKEN:
                continue
            key = (item.task_id, item.run)
            claimed = self.claims.get(key)
            if claimed is None or claimed[0] != bot:
                raise Violation(f"{bot} was believed about run {key}, which is {claimed}'s")
            if isinstance(item, Start):
                self.started.add(key)
            if isinstance(item, Finish) and item.exit_code == 0 and not item.killed:
                self.won.add(key)

    # -- logs

    def writes(self, key: Run, rng: Random) -> tuple[int, bytes]:
        """The next bytes of a run's output; only the simulated task knows them."""
        book = self.written[key]
        offset = len(book)
        content = rng.randbytes(rng.choice((1, 7, 40, 200)))
        book += content
        return offset, content

    def kept(self, key: Run, offset: int, content: bytes) -> None:
        self.acked[key].append((offset, content))

    # -- events, as a sink reads them

    def follow(self, db: Db) -> None:
        """Read on in the numbered stream. Numbers grow by one, and so does each subject's seq."""
        while found := db.read(lambda tx: outbox.after(tx, self.position, 500)):
            for event in found:
                if event.position <= self.position:
                    raise Violation(f"event {event} is numbered behind {self.position}")
                self.position = event.position
                last = self.seqs.get(event.subject, 0)
                if event.seq != last + 1:
                    raise Violation(f"event {event} follows seq {last} of its subject")
                self.seqs[event.subject] = event.seq
                self.states[event.subject] = event.state
                self.numbered += 1

    # -- the comparison

    def check(self, tx: Tx) -> None:
        """Compare the books with the database. Cheap enough to be done now and then."""
        runs = {(r[0], r[1]): r for r in tx.all(LIVE_RUNS)}
        states: dict[int, str] = dict(tx.all(EXISTING))
        jobs = {row[0] for row in tx.all(EXISTING_JOBS)}
        for key, job_id in self.jobs.items():
            if job_id not in jobs and job_id not in self.deleted_jobs:
                raise Violation(f"the job {job_id} was acknowledged under {key} and is not there")
            if job_id not in self.deleted_jobs:
                for label, task_id in self.labels[job_id].items():
                    if task_id not in states:
                        raise Violation(f"task {task_id} ({label}) of job {job_id} is not there")
        for key, task_id in self.tasks.items():
            if task_id not in states:
                raise Violation(f"the task {task_id} was acknowledged under {key} and is not there")
        for run, (bot, session, _) in self.claims.items():
            if run not in runs:
                continue
            if runs[run][2] != bot:
                raise Violation(f"run {run} was handed to {bot}; the store says {runs[run][2]}")
            if runs[run][6] == "bot_restarted" and self.sessions[bot] == session:
                raise Violation(f"run {run} ended because {bot} had restarted, which it had not")
        for run in self.started:
            if run in runs and runs[run][4] is None:
                raise Violation(f"the start of run {run} was taken, and forgotten")
        for run in self.won & runs.keys():
            if runs[run][6] == "superseded":
                continue  # a cascade let the task wait again while it ran
            if runs[run][5] not in ("SUCCEEDED", "FAILED", "KILLED"):
                raise Violation(f"the success of run {run} was taken; it ended {runs[run][5]}")
        (back,) = tx.one(RESUMED) or (0,)
        for lost in runs.values() if back else ():
            if lost[6] == "bot_lost" and back < lost[7] < back + lost[8]:
                raise Violation(f"run {lost} was lost within a lease of the service's return at {back}")
        if again := tx.all(ONCE):
            raise Violation(f"tasks without retries were started more than once in a generation: {again}")
        if several := tx.all(WON):
            raise Violation(f"several runs won in one generation: {several}")

    def check_stream(self, tx: Tx) -> None:
        """The whole stream has been read: replayed, it gives the state of every task."""
        for task_id, state in tx.all(EXISTING + " WHERE seq > 0"):
            if self.states.get(task_id) != state:
                raise Violation(f"the events of task {task_id} end with {self.states.get(task_id)}; it is {state}")

    def check_logs(self, tx: Tx) -> None:
        """Bytes that were acknowledged come back as they were written."""
        existing = {row[0] for row in tx.all(EXISTING)}
        for run in self.refused_logs:
            if run[0] in existing:
                raise Violation(f"bytes of run {run} were refused, though it is there")
        for run, pieces in self.acked.items():
            if run[0] not in existing:
                continue
            book = bytes(self.written[run])
            stored = logs.read(tx, *run, stream=0, start=0, length=len(book) + 1)
            for part in stored:
                if part.content != book[part.start : part.start + len(part.content)]:
                    raise Violation(f"the log of run {run} has other bytes at {part.start} than were written")
            if len(pieces) and sum(len(c) for _, c in pieces) == len(book):
                whole = sha256(b"".join(part.content for part in stored)).hexdigest()
                if whole != sha256(book).hexdigest():
                    raise Violation(f"the log of run {run} is not what was written: {stored}")
            for offset, content in pieces:
                if not any(p.start <= offset and p.start + len(p.content) >= offset + len(content) for p in stored):
                    covered = sorted((p.start, p.start + len(p.content)) for p in stored)
                    if not _covers(covered, offset, offset + len(content)):
                        raise Violation(f"bytes {offset}+{len(content)} of run {run} were acknowledged and are gone")


def _winner(tx: Tx, *, task: int, run: int) -> Any:
    return tx.one(WINNER, task=task, run=run)


def _covers(parts: list[tuple[int, int]], low: int, high: int) -> bool:
    for start, end in parts:
        if start <= low < end:
            low = end
    return low >= high


def check_secret(tx: Tx, tables: Sequence[str]) -> None:
    """No table but the one of secrets holds one, in whatever form."""
    for table in tables:
        if table == "secret_bytes":
            continue
        if CANARY.decode() in repr(tx.all(f'SELECT * FROM "{table}"')):
            raise Violation(f"a secret lies in the table {table}")
