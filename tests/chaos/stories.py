"""What clients of a storm do with graphs: each story submits a job, changes it, and waits until it has ended."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.chaos.ledger import Command, Graph

if TYPE_CHECKING:
    from tests.chaos.storm import Caller

CANCELLED = frozenset({"CANCELLED"})
ANY_TASK_END = frozenset({"SUCCEEDED", "CANCELLED", "KILLED", "EXPIRED", "FAILED"})
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def _layers(caller: Caller, count: int, *, seconds: float = 0.0) -> tuple[dict[str, Command], dict[str, list[str]]]:
    """Commands by label, and for each the labels of up to three earlier ones that it requires."""
    commands, edges = {}, {}
    for number in range(count):
        label = f"n{number}"
        pause = caller.chance.uniform(0, seconds)
        commands[label] = Command(caller.name(label), "node", f"echo {label}; sleep {pause:.2f}", f"{label}\n".encode())
        parents = caller.chance.sample(range(number), min(number, caller.chance.randrange(4)))
        edges[label] = [f"n{parent}" for parent in parents]
    return commands, edges


def _submit(
    caller: Caller,
    story: str,
    commands: Mapping[str, Command],
    edges: Mapping[str, Sequence[str]],
    *,
    nodes: Mapping[str, dict[str, Any]] | None = None,
    properties: Mapping[str, dict[str, Any]] | None = None,
    **fields: Any,
) -> Graph:
    tasks = {
        label: {
            "requires": list(edges[label]),
            "task": caller.request(command, **(properties or {}).get(label, {})),
            **(nodes or {}).get(label, {}),
        }
        for label, command in commands.items()
    }
    key = caller.name(story.replace(" ", "-"))
    ends = fields.pop("ends", frozenset({"SUCCEEDED"}))
    body = {"job": {"name": key, "tasks": tasks, **fields}}
    answer = caller.done("/api/v1/jobs", body, key=key)
    graph = Graph(answer["job_id"], story, dict(commands), dict(edges), answer["task_ids"], ends)
    caller.ledger.graph(graph)
    if caller.chance.random() < 0.3:
        again = caller.done("/api/v1/jobs", body, key=key)
        caller.ledger.count("submits repeated")
        if (again["job_id"], again["task_ids"]) != (answer["job_id"], answer["task_ids"]):
            caller.ledger.violation("the same key gives the same job", f"{key}: {answer}, then {again}")
    return graph


def _act(caller: Caller, graph: Graph, action: str, body: Any = None) -> tuple[int, Any]:
    return caller.post(f"/api/v1/jobs/{graph.id}/{action}", body, key=caller.name(action))


def _done(caller: Caller, graph: Graph, action: str, body: Any = None) -> Any:
    status, answer = _act(caller, graph, action, body)
    assert status == 200, (graph, action, status, answer)
    return answer


def _wait(caller: Caller, graph: Graph) -> str:
    """The state in which it has ended."""
    wait = f"/api/v1/jobs/{graph.id}/wait"
    return str(
        caller.until(
            lambda: (told := caller.done(wait, {"wait_s": 2}, wait_s=2))["done"] and told["job"]["state"],
            f"the end of job {graph.id} ({graph.story})",
        )
    )


def _cancel(caller: Caller, graph: Graph) -> None:
    """Cancel, and mark when the job is idle: from then on nothing of it may start."""
    graph.cancelled = True
    graph.ends = CANCELLED
    state = _done(caller, graph, "cancel")["state"]
    if state != "CANCELLED":  # it had ended before
        graph.cancelled = False
        graph.ends = frozenset({state})
        return
    caller.ledger.mark("cancelled", graph.id)
    caller.ledger.count("jobs cancelled")

    def idle() -> bool:
        job = caller.get(f"/api/v1/jobs/{graph.id}")
        return not job["busy"] and not job["counts"].get("RUNNING")

    caller.until(idle, f"job {graph.id} to be idle after its cancel")
    caller.ledger.mark("settled", graph.id)


# ---------------------------------------------------------------- the stories


def plain(caller: Caller) -> None:
    """It succeeds; sometimes all of it runs once more."""
    graph = _submit(caller, "plain", *_layers(caller, caller.chance.randrange(2, 12)))
    state = _wait(caller, graph)
    if state == "SUCCEEDED" and caller.chance.random() < 0.4:
        caller.ledger.mark("rerun", graph.id)
        _done(caller, graph, "rerun", {"full": True})
        graph.full_reruns += 1
        caller.ledger.count("jobs rerun")
        _wait(caller, graph)


def held(caller: Caller) -> None:
    """One task is held from the beginning, and the whole job for a while."""
    commands, edges = _layers(caller, 6)
    label = f"n{caller.chance.randrange(6)}"
    graph = _submit(caller, "held", commands, edges, nodes={label: {"hold": True}})
    if caller.chance.random() < 0.5:
        _done(caller, graph, "hold")
        caller.pause(1)
        caller.ledger.mark("release", graph.id)
        _done(caller, graph, "release")
    else:
        caller.pause(2)
        caller.ledger.mark("release", graph.id)
        _done(caller, graph, "release", {"task": label})
    caller.ledger.mark("held", f"{graph.id}/{graph.task_ids[label]}")
    _wait(caller, graph)


def grows_from_inside(caller: Caller) -> None:
    """A command adds tasks to its job, and parents to a task that waits for it."""
    extra = [f"x{number}" for number in range(caller.chance.randrange(1, 4))]
    added = {label: Command(caller.name(label), "node", f"echo {label}", f"{label}\n".encode()) for label in extra}
    document = {
        "tasks": {label: {"requires": ["root"], "task": caller.request(one)} for label, one in added.items()},
        "requires": {"report": extra},
    }
    grow = f'printf %s {shlex.quote(json.dumps(document))} | {sys.executable} "$MYRMIDON_BOT_ZIP" job extend - >&2'
    commands = {
        "root": Command(caller.name("root"), "node", f"{grow} || exit 9"),
        "report": Command(caller.name("report"), "node", "echo all", b"all\n"),
    }
    edges = {"root": [], "report": ["root"]}
    graph = _submit(caller, "grows from inside", commands, edges, properties={"root": {"api": "job"}})
    graph.commands |= added
    graph.edges |= {"report": ["root", *extra], **{label: ["root"] for label in extra}}
    _wait(caller, graph)


def extended_by_a_client(caller: Caller) -> None:
    """Tasks are added while it runs; what was acknowledged is there."""
    graph = _submit(caller, "extended", *_layers(caller, 4, seconds=1.0))
    for number in range(3):
        label = f"late{number}"
        command = Command(caller.name(label), "node", f"echo {label}", f"{label}\n".encode())
        parent = caller.chance.choice(list(graph.commands))
        tasks = {label: {"requires": [parent], "task": caller.request(command)}}
        status, answer = _act(caller, graph, "extend", {"job": {"tasks": tasks}})
        if status == 409:
            break  # it has ended meanwhile
        assert status == 200, answer
        graph.commands[label] = command
        graph.edges[label] = [parent]
        graph.task_ids |= answer["task_ids"]
        caller.ledger.count("extensions")
        caller.pause(0.5)
    _wait(caller, graph)


def fails_at_first(caller: Caller) -> None:
    """The failed part of the job runs again until it succeeds."""
    commands, edges = _layers(caller, 5)
    label = f"n{caller.chance.randrange(5)}"
    place = caller.ledger.folder / caller.name("tries")
    body = f"mkdir {place}1 2>/dev/null && exit 5; mkdir {place}2 2>/dev/null && exit 5; echo good"
    commands[label] = Command(caller.name(label), "node", body, b"good\n")
    _wait(caller, _submit(caller, "fails at first", commands, edges, max_num_retries=50))


def is_cancelled(caller: Caller) -> None:
    """Cancelled while tasks wait, are ready and run."""
    commands, edges = _layers(caller, caller.chance.randrange(5, 40), seconds=3.0)
    graph = _submit(caller, "cancelled", _may_end_anyhow(commands), edges, ends=CANCELLED)
    caller.pause(3)
    _cancel(caller, graph)


def is_cancelled_while_it_is_rerun(caller: Caller) -> None:
    """More tasks than one transaction resets; the cancel comes while the reset goes on."""
    count = caller.chance.randrange(300, 700)
    commands = {f"n{number}": Command(caller.name(f"n{number}"), "node", "true") for number in range(count)}
    expires = {label: {"expiration_s": 1} for label in commands}
    commands = _may_end_anyhow(commands)
    graph = _submit(caller, "rerun and cancelled", commands, dict.fromkeys(commands, ()), properties=expires)
    graph.ends = CANCELLED | {"FAILED", "SUCCEEDED"}
    _wait(caller, graph)
    status, answer = _act(caller, graph, "rerun", {"full": True})
    assert status == 200, answer
    caller.pause(0.3)
    _cancel(caller, graph)


def _may_end_anyhow(commands: Mapping[str, Command]) -> dict[str, Command]:
    return {
        label: Command(one.name, "of a cancelled job", one.body, one.stdout, ends=ANY_TASK_END)
        for label, one in commands.items()
    }


STORIES: tuple[Callable[[Caller], None], ...] = (
    *(plain, plain, plain, held, held, grows_from_inside, grows_from_inside),
    *(
        extended_by_a_client,
        extended_by_a_client,
        fails_at_first,
        is_cancelled,
        is_cancelled,
        is_cancelled_while_it_is_rerun,
    ),
)
