"""The work of a storm: clients that submit, repeat, cancel, hold, release, rerun and extend while things break.

Each client is a thread with a way of its own to the servers. It repeats a call with the same key until it is answered,
as the SDK does, and writes into the ledger what was acknowledged.
"""

from __future__ import annotations

import json
import random
import threading
import time
import traceback
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import urllib3

from myrmidon import Client
from myrmidon.sdk.transport import Transport
from tests.chaos import calls, stories
from tests.chaos.ledger import Command, Ledger
from tests.chaos.site import LEASE_S, POOL, Site
from tests.deadline import HANG_S

TRY_AGAIN = (0, 429, 502, 503, 504)
KINDS = (
    *("quick", "quick", "bytes", "large", "slow", "fails", "once", "once", "cancelled", "cancelled"),
    *("times out", "overdue", "expires"),
)
MOST_WAITING = 25
"""How many tasks of a client may be unfinished before it submits more."""


class NoAnswer(Exception):
    """The faults are over, and still nobody answers."""


class Storm:
    """The clients of a storm. ``over``: no new work. ``calm``: nothing breaks any more, and patience is limited."""

    def __init__(self, site: Site, ledger: Ledger, seed: int, calm: threading.Event) -> None:
        self.site = site
        self.ledger = ledger
        self.over = threading.Event()
        self.calm = calm
        roles: list[Callable[[Caller], None]] = [_commands, _commands, _graphs, _graphs, _functions]
        self._threads = [
            threading.Thread(target=self._run, args=(role, Caller(self, seed * 100 + number)), name=role.__name__)
            for number, role in enumerate(roles)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def finish(self) -> None:
        """Wait until the clients have what they wait for."""
        self.over.set()
        self.calm.set()
        for thread in self._threads:
            thread.join(3 * HANG_S)
            if thread.is_alive():
                self.ledger.violation("an answer comes", f"a client ({thread.name}) waits for ever")

    def _run(self, role: Callable[[Caller], None], caller: Caller) -> None:
        while not self.over.is_set():
            try:
                role(caller)
            except NoAnswer as error:
                self.ledger.violation("an answer comes", str(error))
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the rest
                self.ledger.violation("a client works", repr(error), *traceback.format_exc().splitlines())


class Caller:
    """One client: its calls, its random numbers and the names of what it submits."""

    def __init__(self, storm: Storm, seed: int) -> None:
        self.storm = storm
        self.ledger = storm.ledger
        self.chance = random.Random(seed)
        self.way = storm.site.new_way()
        self.token = storm.site.servers[0].token
        self._http = urllib3.PoolManager(retries=False, maxsize=4)
        self._prefix = f"c{seed}"
        self._numbers = 0

    def name(self, kind: str) -> str:
        self._numbers += 1
        return f"{self._prefix}-{self._numbers}-{kind}"

    def post(self, path: str, body: Any = None, *, key: str = "", wait_s: float = 0.0) -> tuple[int, Any]:
        return self.call("POST", path, {} if body is None else body, key=key, wait_s=wait_s)

    def done(self, path: str, body: Any = None, *, key: str = "", wait_s: float = 0.0) -> Any:
        """The answer of a call that nothing speaks against."""
        status, answer = self.post(path, body, key=key, wait_s=wait_s)
        assert status == 200, (path, status, answer)
        return answer

    def get(self, path: str) -> Any:
        status, answer = self.call("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def call(self, method: str, path: str, body: Any = None, *, key: str = "", wait_s: float = 0.0) -> tuple[int, Any]:
        """Repeated until there is an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        end = None
        while True:
            status, answer = self._send(method, path, data, headers, wait_s)
            if status == 500:
                self.ledger.violation("no internal errors", f"{method} {path}: {answer!r:.2000}")
            elif status not in TRY_AGAIN:
                return status, answer
            self.ledger.count("calls that were repeated")
            if self.storm.calm.is_set():
                end = end or time.monotonic() + HANG_S
                if time.monotonic() > end:
                    raise NoAnswer(f"{method} {path} has no answer: {status} {answer!r:.500}")
            time.sleep(self.chance.uniform(0.05, 0.3))

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str], wait_s: float
    ) -> tuple[int, Any]:
        try:
            answer = self._http.request(
                method, self.way.url + path, body=data, headers=headers, timeout=urllib3.Timeout(5.0, 15.0 + wait_s)
            )
            return answer.status, json.loads(answer.data)  # a body that is missing was cut: ValueError
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            return 0, error

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Look again and again; after the faults, not for ever."""
        end = None
        while not (found := true()):
            if self.storm.calm.is_set():
                end = end or time.monotonic() + HANG_S
                if time.monotonic() > end:
                    raise NoAnswer(f"it never comes: {what}")
            time.sleep(0.1)
        return found

    def pause(self, most_s: float) -> None:
        self.storm.over.wait(self.chance.uniform(0, most_s))

    def request(self, command: Command, **fields: Any) -> dict[str, Any]:
        """The task request of a command."""
        task: dict[str, Any] = {key: fields.pop(key) for key in ("deadline_s",) if key in fields}
        piece: dict[str, Any] = {key: fields.pop(key) for key in ("expiration_s",) if key in fields}
        properties = {
            "command": command.shell(self.ledger.path),
            "dimensions": {"pool": [POOL]},
            "grace_period_s": 1,
            "execution_timeout_s": command.timeout_s,
            **fields,
        }
        if command.stdin is not None:
            task["stdin"] = b64encode(command.stdin).decode()
        slices = [{"properties": properties, **piece}]
        counts = {"retries": command.retries, "reruns": command.reruns, "lease_s": LEASE_S}
        return {"name": command.name, "slices": slices, **counts, **task}


# ---------------------------------------------------------------- commands


def _commands(caller: Caller) -> None:
    """Submit commands in small batches, each with a key; repeat some submits; cancel and rerun some tasks."""
    waiting: dict[str, Command] = {}
    sent: list[tuple[dict[str, Any], str, list[str]]] = []
    over = caller.storm.over
    while not over.is_set() or waiting:
        if not over.is_set():
            pairs = [_a_command(caller) for _ in range(caller.chance.randrange(1, 5))]
            body = {"tasks": [request for _, request in pairs]}
            key = caller.name("submit")
            made = [one["task_id"] for one in caller.done("/api/v1/tasks", body, key=key)["tasks"]]
            caller.ledger.acknowledged(made, [command for command, _ in pairs])
            caller.ledger.count("submits")
            sent.append((body, key, made))
            waiting |= {task_id: command for task_id, (command, _) in zip(made, pairs, strict=True)}
            _repeat_one(caller, sent)
            caller.pause(0.5)
            for task_id in made:
                if waiting[task_id].kind == "cancelled":
                    _cancel(caller, task_id)
        while waiting and (len(waiting) > MOST_WAITING or over.is_set()):
            _take_ended(caller, waiting)
        _take_ended(caller, waiting)


def _a_command(caller: Caller) -> tuple[Command, dict[str, Any]]:
    chance = caller.chance
    kind = chance.choice(KINDS)
    name, number = caller.name(kind.replace(" ", "-")), chance.randrange(1000)
    lines = b"".join(b"%d\n" % n for n in range(1, number + 1))
    match kind:
        case "bytes":
            data = chance.randbytes(chance.randrange(100_000))
            command = Command(name, kind, "cat", data, stdin=data)
        case "large":
            text = b"".join(b"%d\n" % n for n in range(1, 40_001))
            command = Command(name, kind, "seq 40000", text)
        case "slow":
            seconds = chance.choice((0.2, 1, 3))
            command = Command(name, kind, f"seq {number}; sleep {seconds}; echo more", lines + b"more\n")
        case "fails":
            reruns = chance.randrange(3)
            command = Command(
                name, kind, f"seq {number}", lines, exit_code=3, reruns=reruns, ends=frozenset({"FAILED"})
            )
        case "once":
            ends = frozenset({"SUCCEEDED", "BOT_DIED"})
            command = Command(name, kind, f"seq {number}; sleep {chance.choice((0, 0.5))}", lines, retries=0, ends=ends)
        case "cancelled":
            command = Command(name, kind, "sleep 30", ends=frozenset({"CANCELLED", "KILLED", "SUCCEEDED"}))
        case "times out":
            command = Command(name, kind, "sleep 60", ends=frozenset({"TIMED_OUT"}), timeout_s=1.5)
        case "overdue":
            # BOT_DIED: its run was lost, and no bot took the next one in time
            command = Command(name, kind, "sleep 60", ends=frozenset({"TIMED_OUT", "EXPIRED", "BOT_DIED"}))
            return command, caller.request(command, deadline_s=chance.randrange(4, 15))
        case "expires":
            command = Command(name, kind, "true", ends=frozenset({"EXPIRED", "NO_RESOURCE"}))
            nobody = {"pool": [POOL], "nobody": ["here"]}
            return command, caller.request(command, expiration_s=chance.randrange(1, 5), dimensions=nobody)
        case _:
            command = Command(name, kind, f"seq {number}", lines)
    return command, caller.request(command)


def _repeat_one(caller: Caller, sent: list[tuple[dict[str, Any], str, list[str]]]) -> None:
    """The same key gives the same tasks, however much later it comes."""
    if caller.chance.random() < 0.4:
        body, key, made = caller.chance.choice(sent)
        again = [one["task_id"] for one in caller.done("/api/v1/tasks", body, key=key)["tasks"]]
        caller.ledger.count("submits repeated")
        if again != made:
            caller.ledger.violation("the same key gives the same task", f"{key}: {made}, then {again}")


def _cancel(caller: Caller, task_id: str) -> None:
    body = {"kill_running": True}
    answer = caller.done(f"/api/v1/tasks/{task_id}/cancel", body, key=caller.name("cancel"))
    if answer["ok"]:
        caller.ledger.mark("cancelled", task_id)
        caller.ledger.cancelled[task_id] = answer["state"]
        caller.ledger.count("tasks cancelled")


def _take_ended(caller: Caller, waiting: dict[str, Command]) -> None:
    """Wait for the end of any task for a second; some that have succeeded are started again."""
    if not waiting:
        return
    body = {"task_ids": list(waiting), "mode": "any", "wait_s": 1}
    number = len(waiting)
    caller.until(
        lambda: _ended(caller, body, waiting) or len(waiting) < number or not caller.storm.over.is_set(), "ends"
    )


def _ended(caller: Caller, body: dict[str, Any], waiting: dict[str, Command]) -> bool:
    answer = caller.done("/api/v1/tasks/wait", body, wait_s=1)
    for one in answer["tasks"]:
        if not one["final"] or one["task_id"] not in waiting:
            continue
        task_id = one["task_id"]
        caller.ledger.seen_ended(task_id, (one["state"], one["run"], one["exit_code"]))
        command = waiting.pop(task_id)
        if task_id in caller.ledger.cancelled:
            caller.ledger.mark("settled", task_id)
        elif command.kind == "quick" and one["state"] == "SUCCEEDED" and caller.chance.random() < 0.1:
            caller.done(f"/api/v1/tasks/{task_id}/rerun", {"force": True}, key=caller.name("rerun"))
            caller.ledger.runs_again(task_id)
            waiting[task_id] = command
    return bool(answer["done"])


# ---------------------------------------------------------------- graphs and functions


def _graphs(caller: Caller) -> None:
    """One story of a graph after the other, each to its end."""
    while not caller.storm.over.is_set():
        story = caller.chance.choice(stories.STORIES)
        story(caller)
        caller.pause(0.5)


def _functions(caller: Caller) -> None:
    """Calls of functions, compared with the same calls in plain Python."""
    with Client(Transport(caller.way.url, caller.token)) as client:
        while not caller.storm.over.is_set():
            wanted = [_a_call(caller) for _ in range(caller.chance.randrange(1, 6))]
            futures = [client.submit(function.options(**calls.TRIES), *args) for function, *args in wanted]
            for future, (function, *args) in zip(futures, wanted, strict=True):
                caller.until(future.done, f"the result of {function} in {future.job_id} {future.label}")  # type: ignore[attr-defined]
                _compare(caller, function, args, future)
            caller.pause(0.5)


def _a_call(caller: Caller) -> tuple[Any, ...]:
    chance, ledger = caller.chance, str(caller.ledger.path)
    number = chance.randrange(1000)
    words = [f"w{chance.randrange(50)}" for _ in range(chance.randrange(30))]
    return chance.choice((
        (calls.mixed, ledger, number, words),
        (calls.stretched, ledger, chance.randbytes(chance.randrange(5000)), chance.randrange(1, 400)),
        (calls.slow, ledger, number, chance.choice((0.0, 0.5, 2.0))),
        (calls.refused, ledger, number),
        (calls.grown, ledger, chance.randrange(1, 6)),
    ))  # fmt: skip


def _compare(caller: Caller, function: Any, args: list[Any], future: Any) -> None:
    def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return "returned", call()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            return "raised", error

    (kind, got), (plain_kind, wanted) = outcome(future.result), outcome(lambda: function(*args))
    caller.ledger.count("function calls")
    if kind == "raised" and plain_kind == "raised" and isinstance(got, type(wanted)) and str(wanted) in str(got):
        return
    if kind == "raised" and type(got).__module__ == "myrmidon.sdk.errors":
        caller.ledger.count("function calls that the client gave up")
        return
    if (kind, got) != (plain_kind, wanted):
        text = f"{function}{args!r:.200} of {future.task_id} {kind} {got!r:.300}, not {wanted!r:.300}"
        caller.ledger.violation("functions are as in plain Python", text, str(getattr(got, "message", "")))
