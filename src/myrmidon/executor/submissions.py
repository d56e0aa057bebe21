"""The calls that a function adds to its own job with ``context().submit``.

They are collected and sent when the function returns: only then is it known whether one of them gives the result of
the function, and a function that fails has added nothing. Their labels depend only on the label of the task and the
order of the calls, so that a repeated run adds the same tasks, which the server takes for what it has already. A label
begins with that of the task, or with a digest of it where calls are nested so deeply that labels would get too long.
"""

from __future__ import annotations

import json
import os
import threading
from hashlib import sha256
from typing import Any, Iterable, Mapping, Sequence

from myrmidon.executor.job_calls import calls_of
from myrmidon.functions.environments import defaults_of_run
from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.handles import Handle, TupleHandle, source_of
from myrmidon.functions.native_task import LIBRARY
from myrmidon.functions.node_inputs import contains_handle
from myrmidon.functions.shipped_libraries import read_list, with_shipped_library
from myrmidon.functions.signature import Signature
from myrmidon.functions.types import TypeProblem, type_string

MAX_TASKS = 1_000
"""How many tasks one extension may have."""
MAX_PREFIX = 120
"""Characters of a task's label that the labels of its calls may begin with; labels have at most 255."""


class _Builder(GraphBuilder):
    """Builds a part of a graph below a task of it."""

    def __init__(self, label: str, environment: str) -> None:
        super().__init__(defaults_of_run(environment))
        self._prefix = label if len(label) <= MAX_PREFIX else _shortened(label)
        self.misuse_hint = (
            "; a function cannot wait for what it has submitted: pass the handle to another call, or return it"
        )

    def _new_label(self, wanted: str) -> str:
        return super()._new_label(f"{self._prefix}/{wanted}")


class Submissions:
    """The calls of one run."""

    def __init__(self, frame: Mapping[str, Any], folder: str) -> None:
        """``folder`` has the code of the run and the name of its digest; empty if the code is installed."""
        self._calls = calls_of(frame)
        self._label: str = frame["label"]
        self._code = os.path.basename(folder)
        self._libraries = read_list(folder) if folder else {}
        self._builder = _Builder(self._label, frame.get("environment") or "")
        self._num_sent = 0
        self._lock = threading.Lock()  # a function may submit from several threads

    def call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self._lock:
            return self._builder.call(with_shipped_library(function, self._libraries), args, kwargs)

    def map(self, function: Any, items: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        known = items if isinstance(items, Handle) else list(items)  # may itself submit
        with self._lock:
            return self._builder.map(with_shipped_library(function, self._libraries), known, args, kwargs)

    def delegate_of(self, result: Any, signature: Signature) -> str | None:
        """The label of the call whose outputs are those of the function; None if the result is a value.

        Raises TypeProblem if the result is a handle that cannot stand for it.
        """
        if not isinstance(result, Handle):
            if contains_handle(result):
                raise TypeProblem(
                    "it contains handles; submit a function that takes them, and return its handle", "result"
                )
            return None
        source = source_of(result)
        label = source.node.label
        if source.builder is not self._builder:
            raise TypeProblem(f"{result!r} belongs to another run", "result")
        if label in list(self._builder.nodes)[: self._num_sent]:
            raise TypeProblem(f"{label} was sent by flush() already, it cannot be the result any more", "result")
        given = [type_string(one) for one in source.node.outputs]
        is_whole = isinstance(result, TupleHandle) or len(given) <= 1
        if given != signature.output_types or not is_whole:
            raise TypeProblem(f"expected {_show(signature.output_types)}, given {label} of {_show(given)}", "result")
        return label

    def _code_of(self, module: str) -> str:
        """The code of this run, which has all modules; a library that is shipped is in a code of its own."""
        if module.startswith(LIBRARY):
            return module[len(LIBRARY) :]
        return self._code if module else ""

    def send(self, delegate: str | None = None) -> None:
        """Send the calls that were not sent yet, those with the delegate so that its outputs are the function's."""
        with self._lock:
            self._send(delegate)

    def _send(self, delegate: str | None) -> None:
        labels = list(self._builder.nodes)[self._num_sent :]
        uploads = self._builder.writer.uploads
        for start in range(0, len(labels), MAX_TASKS):
            chosen = labels[start : start + MAX_TASKS]
            tasks = self._builder.tasks_text(self._code_of, chosen)
            delegates = f',"delegates":{json.dumps({delegate: self._label})}' if delegate in chosen else ""
            self._calls.upload(uploads)  # filled while the text is made
            uploads.clear()
            self._calls.extend(f'{{"tasks":{tasks}{delegates}}}')
        self._num_sent += len(labels)


def _shortened(label: str) -> str:
    """The beginning of a label, and a digest of the whole: the same for the same label."""
    return f"{label[: MAX_PREFIX // 2]}~{sha256(label.encode()).hexdigest()[:12]}"


def _show(types: Sequence[str]) -> str:
    return types[0] if len(types) == 1 else f"({','.join(types)})"
