"""Compare what Myrmidon says with the ledger, once nothing breaks any more. Each broken promise is a violation.

drain(...)        wait until everything has ended
compare(...)      tasks, runs, logs and jobs, as the API shows them
messages(...)     what receivers got, with the changes of states
database(...)     the invariants, and that nothing is overdue; nobody may write any more
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from myrmidon.model.ids import show_task
from tests import databases, invariants
from tests.chaos.ledger import Command, Executions, Graph, Ledger, task_of
from tests.chaos.site import Site
from tests.deadline import HANG_S
from tests.live import LiveServer

FINAL = frozenset({
    "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "CANCELLED", "KILLED", "NO_RESOURCE", "CLIENT_ERROR",
})  # fmt: skip
FINAL_JOBS = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
ENDED_BY_ITSELF = frozenset({"SUCCEEDED", "FAILED"})
"""States of runs whose command has come to its last line."""
PAGE = 1000


def drain(site: Site, ledger: Ledger) -> None:
    """Wait while the number of unfinished tasks and jobs changes; what does not end is a violation."""
    server = site.servers[0]
    last, end = -1, 0.0
    while left := _unfinished(server):
        if len(left) != last:
            last, end = len(left), time.monotonic() + HANG_S
        if time.monotonic() > end:
            for kind, one in left[:20]:
                ledger.violation("everything ends", f"{kind} {one} does not end", *_history(server, kind, one))
            return
        site.tend()
        site.release_bots()
        time.sleep(0.5)


def _unfinished(server: LiveServer) -> list[tuple[str, str]]:
    """Tasks and jobs that may still change. Behind a failed task others wait for ever: their job has ended."""
    jobs = [job for job in _pages(server, "/api/v1/jobs?", "jobs") if job["state"] not in FINAL_JOBS]
    tasks = _pages(server, "/api/v1/tasks?state=READY&state=RUNNING&", "tasks")
    return [*(("job", job["job_id"]) for job in jobs), *(("task", task["task_id"]) for task in tasks)]


def _pages(server: LiveServer, path: str, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = _get(server, f"{path}limit={PAGE}{cursor}")
        found += page[what]
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


def _get(server: LiveServer, path: str) -> Any:
    status, answer = server.get(path)
    assert status == 200, (path, status, answer)
    return answer


def _history(server: LiveServer, kind: str, subject: str) -> list[str]:
    """What the API tells of a task or job, for the evidence."""
    status, told = server.get(f"/api/v1/{kind}s/{subject}")
    if status != 200 or kind == "job":
        return [f"{status} {told}"]
    runs = [
        f"run {one['run']}: {one['state']} {one['reason']} on {one['bot_id']}, claimed {one['claimed_at']},"
        f" started {one['started_at']}, ended {one['ended_at']}, {one['evidence']}"
        for one in told["runs"]
    ]
    return [f"{told['request']['name']}: {told['result']}", *runs]


# ---------------------------------------------------------------- tasks and jobs


def compare(site: Site, ledger: Ledger) -> None:
    """Everything that was acknowledged is there, once, has run as it may, and has the bytes that it should have."""
    server = site.servers[0]
    ran = ledger.executions()
    listed = _pages(server, "/api/v1/tasks?", "tasks")
    check = _Check(server, ledger, ran)
    for graph in list(ledger.graphs.values()):
        check.job(graph)
    for task_id, command in list(ledger.commands.items()):
        check.task(task_id, command)
    check.runs_of_functions([task["task_id"] for task in listed])
    check.names(listed)
    ledger.counts["tasks in the database"] = len(listed)
    ledger.counts["executions"] = sum(map(len, ran.starts.values()))


class _Check:
    """Compares one task or job after the other."""

    def __init__(self, server: LiveServer, ledger: Ledger, ran: Executions) -> None:
        self.server = server
        self.ledger = ledger
        self.ran = ran
        self.seen: set[str] = set()
        self._of_task: dict[str, list[str]] = defaultdict(list)
        for run in {*ran.starts, *ran.ends}:
            self._of_task[task_of(run)].append(run)

    def _broken(self, promise: str, text: str, task_id: str) -> None:
        evidence = [*self.ran.of_task(task_id)[:30], *_history(self.server, "task", task_id)]
        self.ledger.violation(promise, f"task {task_id}: {text}", *evidence)

    def task(self, task_id: str, command: Command) -> None:
        self.seen.add(task_id)
        status, told = self.server.get(f"/api/v1/tasks/{task_id}")
        if status != 200:
            self._broken("an acknowledged submit is never lost", f"{command.name} is answered with {status}", task_id)
            return
        state, runs = told["result"]["state"], told["runs"]
        if state not in command.ends:
            self._broken("it ends as it should", f"{command.name} is {state}, not {sorted(command.ends)}", task_id)
        if task_id in self.ledger.first_ends and state in FINAL:
            result = told["result"]
            self.ledger.seen_ended(task_id, (state, result["run"], result["exit_code"]))
        self._executions(task_id, runs)
        if command.retries == 0 and command.reruns == 0 and told["result"]["generation"] == 1:
            starts = sum(len(self.ran.starts.get(run, ())) for run in self._of_task[task_of(task_id)])
            if starts > 1:
                self._broken("`retries: 0` runs at most once", f"{command.name} was started {starts} times", task_id)
        if command.kind == "fails":
            failed = sum(run["state"] == "FAILED" for run in runs)
            if failed != command.reruns + 1:
                self._broken("it fails as often as it may", f"{failed} failures, {command.reruns} reruns", task_id)
        for run in runs:
            self._log(task_id, run, command)
        if task_id in self.ledger.cancelled:
            self._nothing_after("settled", task_id, [task_id])

    def _executions(self, task_id: str, runs: Sequence[Mapping[str, Any]]) -> None:
        """No run is executed twice, none by a bot to which it was not given, and no result is made up."""
        known = {run["run"]: run for run in runs}
        for run in self._of_task[task_of(task_id)]:
            if run not in known:
                self._broken("only claimed runs are executed", f"{run} was executed", task_id)
            for what, lines in (
                ("started", self.ran.starts.get(run, ())),
                ("came to its end", self.ran.ends.get(run, ())),
            ):
                if len(lines) > 1:
                    self._broken("a run is executed once", f"{run} {what} {len(lines)} times", task_id)
        for run_id, told in known.items():
            if told["state"] == "SUCCEEDED" and not (self.ran.starts.get(run_id) and self.ran.ends.get(run_id)):
                self._broken("a result is of an execution", f"{run_id} succeeded without one", task_id)

    def _log(self, task_id: str, run: Mapping[str, Any], command: Command) -> None:
        """All bytes of a command that came to its end; of another one the first of them."""
        if run["reason"] == "given_back":
            return
        whole = run["state"] in ENDED_BY_ITSELF and run["exit_code"] == command.exit_code
        text = _log_of(self.server, task_id, run["number"])
        if not (text == command.stdout if whole else command.stdout.startswith(text)):
            said = f"{run['run']} ({run['state']}) has {len(text)} bytes of {len(command.stdout)}: ...{text[-60:]!r}"
            self._broken("logs are byte-exact", said, task_id)

    def _nothing_after(self, word: str, subject: str, task_ids: Iterable[str]) -> None:
        """No run of these tasks has started since the mark."""
        marks = self.ran.marks.get((word, subject))
        for task_id in task_ids if marks else ():
            for run in self._of_task[task_of(task_id)]:
                if any(line > marks[0] for line in self.ran.starts.get(run, ())):  # type: ignore[index]
                    text = f"{run} has started after line {marks[0]}, when {subject} was {word}"  # type: ignore[index]
                    self._broken("what was cancelled stays cancelled", text, task_id)

    def job(self, graph: Graph) -> None:
        status, job = self.server.get(f"/api/v1/jobs/{graph.id}")
        if status != 200:
            self.ledger.violation("an acknowledged submit is never lost", f"job {graph.id} is answered with {status}")
            return
        tasks = {one["label"]: one for one in _pages(self.server, f"/api/v1/jobs/{graph.id}/tasks?", "tasks")}
        known = {label: one["task_id"] for label, one in tasks.items()}
        told = [f"{graph.story}: {job}", *_evidence_of(tasks)]
        if job["state"] not in graph.ends:
            self.ledger.violation("a job ends as it should", f"{graph.id} is {job['state']}", *told)
        wanted = {label: graph.task_ids.get(label, known.get(label)) for label in graph.commands}
        if known != wanted:
            self.ledger.violation("a job has its tasks", f"{graph.id} has {known}, not {wanted}", *told)
        if graph.cancelled:
            unfinished = [label for label, one in tasks.items() if one["state"] not in FINAL]
            if unfinished:
                text = f"{graph.id} is {job['state']} and {len(unfinished)} of its tasks are not: {unfinished[:5]}"
                self.ledger.violation("what was cancelled stays cancelled", text, *told)
            self._nothing_after("settled", graph.id, known.values())
        for label, command in graph.commands.items():
            if label in known:
                self.task(known[label], command)
                self._parents(graph, label, known)
        self._held(graph)

    def _parents(self, graph: Graph, label: str, known: Mapping[str, str]) -> None:
        """Before a task starts, each parent has ended; after a full rerun, once more."""
        reruns = self.ran.marks.get(("rerun", graph.id), ())
        for run in self._of_task[task_of(known[label])]:
            for start in self.ran.starts.get(run, ()):
                since = max((line for line in reruns if line < start), default=-1)
                for parent in graph.edges.get(label, ()):
                    ends = [
                        line
                        for one in self._of_task[task_of(known.get(parent, "00"))]
                        for line in self.ran.ends.get(one, ())
                        if since < line < start
                    ]
                    if not ends:
                        text = f"{run} ({label}) has started at line {start} before the end of {parent}"
                        self._broken("a task starts after its parents", text, known[label])

    def _held(self, graph: Graph) -> None:
        released = self.ran.marks.get(("release", graph.id))
        for word, subject in self.ran.marks:
            job, _, task_id = subject.partition("/")
            if word == "held" and job == graph.id and released:
                for run in self._of_task[task_of(task_id)]:
                    if any(line < released[0] for line in self.ran.starts.get(run, ())):
                        self._broken(
                            "a held task does not start", f"{run} has started before line {released[0]}", task_id
                        )

    def runs_of_functions(self, task_ids: Iterable[str]) -> None:
        """Functions: their tasks are known from the server only."""
        for task_id in task_ids:
            if task_id not in self.seen and self._of_task[task_of(task_id)]:
                status, told = self.server.get(f"/api/v1/tasks/{task_id}")
                if status == 200:
                    self._executions(task_id, told["runs"])

    def names(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """No submit has made a second task."""
        names = Counter(task["name"] for task in listed)
        for name in sorted(self.ledger.names):
            if names[name] != 1:
                self.ledger.violation("the same key gives the same task", f"there are {names[name]} tasks {name}")


def _log_of(server: LiveServer, task_id: str, number: int) -> bytes:
    text = b""
    while True:
        path = f"/api/v1/tasks/{task_id}/log?stream=stdout&run={number}&offset={len(text)}&limit=1000000"
        answer = server.call("GET", path)
        if answer.status != 200 or not answer.data:
            return text
        text += answer.data


def _evidence_of(tasks: Mapping[str, Any]) -> list[str]:
    return [f"{label}: {one['state']} {one['reason']} {one['run']}" for label, one in list(tasks.items())[:20]]


# ---------------------------------------------------------------- messages

EVENTS = "SELECT subject, seq, kind, state, body FROM outbox ORDER BY subject, seq"
NUM_EVENTS = "SELECT COUNT(*) FROM outbox"
Sent = dict[tuple[str, int], str]


def messages(site: Site, ledger: Ledger) -> None:
    """Each receiver got one message for each change of a task or job, and those of one subject in order."""
    wanted: Sent = {}
    last, end = -1, 0.0
    while True:
        with closing(databases.open_for_test(site.url, role="reader")) as db:
            wanted = _announced(db.read(lambda tx: tx.all(EVENTS)))
        missing = {
            name: wanted.keys() - {(_subject(body), body["seq"]) for _, body in list(got)}
            for name, got in ledger.received.items()
        }
        left = sum(map(len, missing.values()))
        if left != last:
            last, end = left, time.monotonic() + HANG_S
        if not left or time.monotonic() > end:
            break
        time.sleep(0.5)
    for name, got in ledger.received.items():
        for subject, seq in sorted(missing[name])[:10]:
            text = f"{name} did not get {wanted[subject, seq]}, change {seq} of {subject}"
            ledger.violation("messages arrive at least once", text)
        _check_received(ledger, name, got, wanted)
        ledger.counts[f"messages to {name}"] = len(got)


def _subject(body: Mapping[str, Any]) -> str:
    return str(body.get("task") or body["job"])


def _check_received(
    ledger: Ledger, name: str, got: Sequence[tuple[str, Mapping[str, Any]]], wanted: Mapping[tuple[str, int], str]
) -> None:
    first: dict[str, Mapping[str, Any]] = {}
    last: dict[str, int] = {}
    for message_id, body in got:
        subject, seq = _subject(body), body["seq"]
        if message_id in first:
            if first[message_id] != body:
                ledger.violation("a repeated message is the same", f"{name}: {first[message_id]}, then {body}")
            continue
        first[message_id] = body
        if seq <= last.get(subject, 0):
            ledger.violation("messages come in order", f"{name}: {subject}: {seq} after {last[subject]}", str(body))
        last[subject] = seq
        if wanted.get((subject, seq)) != body["kind"]:
            text = f"{name} got {body['kind']} for change {seq} of {subject}, not {wanted.get((subject, seq))}"
            ledger.violation("messages tell what has happened", text, str(body))


def _announced(events: Sequence[tuple[Any, ...]]) -> Sent:
    """The kinds of the messages that these events are worth, as docs/messages.md has it."""
    found: Sent = {}
    before: tuple[Any, ...] = ()
    for number, seq, kind, state, text in events:
        body, subject = json.loads(text), show_task(number)
        now = (number, body.get("view"), *(() if kind == "job" else (state, body["generation"], body.get("run", 0))))
        if kind == "job" and body["what"] == "extended":
            found[subject, seq] = "task-graph-extended"
        elif now != before:
            said = f"task-graph-{body['view']}" if kind == "job" else _kind_of(state, body.get("reason", ""))
            if said:
                found[subject, seq] = said
        before = now
    return found


def _kind_of(state: str, reason: str) -> str:
    if state == "TIMED_OUT" and reason == "deadline":
        return "task-exception"
    kinds = {"WAITING": "", "READY": "task-pending", "RUNNING": "task-running", "SUCCEEDED": "task-completed"}
    return kinds.get(state, "task-failed" if state in ("FAILED", "TIMED_OUT") else "task-exception")


# ---------------------------------------------------------------- the database


def database(site: Site, ledger: Ledger, now: int) -> None:
    """All invariants hold, and nothing is overdue. The servers have ended."""
    with closing(databases.open_for_test(site.url, role="reader")) as db:
        try:
            invariants.check_settled(db, now)
        except AssertionError as broken:
            named = list(dict.fromkeys(re.findall(r"task (\d+)", str(broken))))[:5]
            told = [db.read(lambda tx, task=int(task): invariants.story(tx, task)) for task in named]
            ledger.violation("the invariants of the database hold", str(broken), *told)
