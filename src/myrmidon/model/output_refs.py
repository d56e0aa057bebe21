"""References to outputs of other tasks in the properties of a command: ``{"$output": "<label>:<position>"}``.

A reference may be an argument of the command, its stdin, a value in its environment, or any value in its payload. While
a request is read, each is replaced by a text that only shows it, and recorded with its path. The values are put there
when a bot claims the task.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from myrmidon.model.json_bounds import MAX_DEPTH
from myrmidon.model.shown_input import Path
from myrmidon.model.task_request import OutputOf, OutputRef
from myrmidon.model.validation import Checker

KEY: Final = "$output"
_RULE: Final = "the label of a task, a colon, and the position of its output, such as build:0"


def output_text(value: object) -> str | None:
    """The text of an object of the form ``{"$output": "..."}``; None for any other value."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    text = value.get(KEY)
    return text if isinstance(text, str) else None


def labels_in(tree: object) -> set[str]:
    """The labels of all references in a tree. Does not recurse: the tree has not been checked for depth."""
    found: set[str] = set()
    rest = [tree]
    while rest:
        value = rest.pop()
        if (text := output_text(value)) is not None:
            found.add(text.rpartition(":")[0])
        elif isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
    return found


class FoundOutputs:
    """Collects the references of one task. ``sources`` has every output that is referred to once, in order."""

    def __init__(self) -> None:
        self.sources: list[OutputOf] = []
        self._index: dict[tuple[str, int], int] = {}
        self._of_stdin: list[OutputRef] = []

    def take_stdin(self, check: Checker, raw: dict[str, object], path: Path) -> dict[str, object]:
        """The request without a reference in ``stdin``, which each of its slices gets."""
        text = output_text(raw.get("stdin"))
        if text is None:
            return raw
        self._add(check, text, (*path, "stdin"), ["stdin"], self._of_stdin)
        return {key: value for key, value in raw.items() if key != "stdin"}

    def replace(self, check: Checker, raw: dict[str, object], path: Path) -> tuple[dict[str, object], list[OutputRef]]:
        """The properties of one slice with a text in place of each reference, and the references."""
        refs = list(self._of_stdin)
        command, env, payload = raw.get("command"), raw.get("env"), raw.get("payload")
        if isinstance(command, (list, tuple)) and any(isinstance(word, dict) for word in command):
            words = [
                self._take(check, word, (*path, "command", i), ["command", i], refs) for i, word in enumerate(command)
            ]
            raw = {**raw, "command": words}
        if isinstance(env, dict) and any(isinstance(value, dict) for value in env.values()):
            replaced = {k: self._take(check, v, (*path, "env", str(k)), ["env", str(k)], refs) for k, v in env.items()}
            raw = {**raw, "env": replaced}
        if isinstance(payload, str) and KEY in payload:
            payload = _decoded(payload)
        if isinstance(payload, dict):
            self._walk(check, payload, (*path, "payload"), refs)
        return raw, refs

    def _take(self, check: Checker, value: object, path: Path, where: list[str | int], refs: list[OutputRef]) -> object:
        """The text that stands for a reference; any other value unchanged."""
        text = output_text(value)
        if text is None:
            return value
        self._add(check, text, path, where, refs)
        return msgspec.json.encode({KEY: text}).decode()

    def _walk(self, check: Checker, payload: dict[str, Any], path: Path, refs: list[OutputRef]) -> None:
        """Record the references in a payload, which keeps them. Those below MAX_DEPTH are not found."""
        level: list[tuple[list[str | int], object]] = [(["payload"], payload)]
        for _ in range(MAX_DEPTH):
            below: list[tuple[list[str | int], object]] = []
            for where, value in level:
                if (text := output_text(value)) is not None:
                    self._add(check, text, (*path, *where[1:]), where, refs)
                elif isinstance(value, dict):
                    below += [
                        ([*where, str(key)], item) for key, item in value.items() if isinstance(item, (dict, list))
                    ]
                elif isinstance(value, list):
                    below += [([*where, i], item) for i, item in enumerate(value) if isinstance(item, (dict, list))]
            level = below
            if not level:
                return

    def _add(self, check: Checker, text: str, path: Path, where: list[str | int], refs: list[OutputRef]) -> None:
        label, _, position = text.rpartition(":")
        limits = check.limits
        if not 0 < len(label) <= limits.label_chars or not position.isdecimal() or len(position) > 4:
            check.note((*path, KEY), text, _RULE, "output")
            return
        source = (label, int(position))
        if source not in self._index:
            self._index[source] = len(self.sources)
            self.sources.append(OutputOf(type="", label=label, position=source[1]))
        refs.append(OutputRef(path=where, input=self._index[source]))


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
