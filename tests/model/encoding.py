"""Requests and graphs as the JSON that users send: what the parsers read back to something equal."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from myrmidon.model.ids import show_run
from myrmidon.model.job import Graph
from myrmidon.model.task_request import OutputOf, Properties, TaskRequest


def encode_task(request: TaskRequest, *, secret: bool = False) -> dict[str, object]:
    """The JSON form that parse_task reads back to an equal request; secret and stdin only if ``secret`` is true."""
    raw: dict[str, object] = msgspec.to_builtins(request)
    if request.parent is not None:
        raw["parent"] = show_run(*request.parent)
    if request.function is None:
        raw["inputs"] = []
    stdin = None
    for task_slice, given in zip(request.slices, cast("list[Any]", raw["slices"]), strict=True):
        stdin = _show_output_refs(request, task_slice.properties, given["properties"])
    if not secret:
        del raw["secret_bytes"], raw["stdin"]
    return {**raw, "stdin": stdin} if stdin is not None else raw


def _show_output_refs(request: TaskRequest, properties: Properties, raw: dict[str, Any]) -> dict[str, str] | None:
    """Write references to outputs as users do; that of stdin is returned. Those in the payload were never replaced."""
    del raw["output_refs"]
    stdin = None
    for ref in properties.output_refs:
        source = request.inputs[ref.input]
        part, *rest = ref.path
        if not isinstance(source, OutputOf):
            continue
        shown = {"$output": f"{source.label}:{source.position}"}
        if part == "stdin":
            stdin = shown
        elif part != "payload":
            raw[str(part)][rest[0]] = shown
    return stdin


def encode_graph(graph: Graph) -> dict[str, object]:
    """The JSON form that parse_graph reads back to an equal graph; without secrets."""
    tasks = {
        node.label: {
            "requires": list(node.requires),
            "requires_policy": node.policy.value,
            "hold": node.hold,
            "task": encode_task(node.request),
        }
        for node in graph.nodes
    }
    return {
        "name": graph.name,
        "external_id": graph.external_id,
        "routing": graph.routing,
        "failure_policy": graph.failure_policy.value,
        "max_num_retries": graph.max_num_retries,
        "deadline_s": graph.deadline_s,
        "metadata": dict(graph.metadata),
        "tags": list(graph.tags),
        "code": list(graph.code),
        "tasks": tasks,
    }
