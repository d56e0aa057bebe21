"""Outcomes of tasks as values: decoded by the annotations of the function that was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from myrmidon.functions.handles import Handle, TupleHandle, source_of
from myrmidon.functions.values import decode
from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import CallFailed
from myrmidon.wire.values import TaskOutcome

SUCCEEDED = "SUCCEEDED"


def output_values(outcome: TaskOutcome, annotations: Sequence[Any], client: Client) -> list[Any]:
    """The decoded outputs of a task that has succeeded."""
    if len(outcome.outputs) != len(annotations):
        raise CallFailed(f"Task {outcome.task_id} has {len(outcome.outputs)} outputs, expected {len(annotations)}.")
    return [
        decode(output.inline if output.inline is not None else client.value(output.value_id).data, annotation)
        for output, annotation in zip(outcome.outputs, annotations, strict=True)
    ]


def returned(values: list[Any], returns: Any) -> Any:
    """What the call would have returned: None, the only output, or the tuple of all."""
    if not values:
        return None
    return values[0] if len(values) == 1 and not _is_one_tuple(returns) else tuple(values)


def _is_one_tuple(returns: Any) -> bool:
    """``tuple[A]``: a tuple with one output."""
    return getattr(returns, "__origin__", None) is tuple and len(returns.__args__) == 1


def handles_in(structure: Any) -> Iterator[Handle]:
    """All handles in lists, tuples and dict values, at any depth."""
    if isinstance(structure, Handle):
        yield structure
    elif type(structure) in (list, tuple):
        for item in structure:
            yield from handles_in(item)
    elif type(structure) is dict:
        yield from handles_in(list(structure.values()))


def with_values(structure: Any, values_of: Callable[[Handle], list[Any]]) -> Any:
    """The structure with every handle replaced by its value."""
    if isinstance(structure, TupleHandle):
        return tuple(values_of(structure))
    if isinstance(structure, Handle):
        return values_of(structure)[source_of(structure).position] if source_of(structure).position >= 0 else None
    if type(structure) in (list, tuple):
        return type(structure)(with_values(item, values_of) for item in structure)
    if type(structure) is dict:
        return {key: with_values(item, values_of) for key, item in structure.items()}
    return structure
