"""Add parts to gathered inputs of tasks that wait: how the results of a fan-out reach its fan-in.

    {"tasks": {"count-7": {...}}, "parts": {"join": {"0": [{"label": "count-7", "position": 0, "type": "int64"}]}}}

Parts are appended to an input without a shape, which is the list of its parts. Each makes an edge, by the rule for
added parents. Parts that the input already has are skipped: an extension may be repeated.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model.dag import check_source
from myrmidon.model.function_validation import read_part
from myrmidon.model.shown_input import Path
from myrmidon.model.task_request import Part
from myrmidon.model.validation import Checker
from myrmidon.scheduler.new_task import OutputSlot
from myrmidon.scheduler.new_values import part_rows
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import WHOLE


class AddedPart(Struct, frozen=True):
    """A part for one gathered input of the task with the label ``child``."""

    child: str
    position: int
    part: Part
    path: Path


def read_added_parts(
    check: Checker, raw: object, existing: Mapping[str, tuple[int, str]], new_labels: Sequence[str]
) -> list[AddedPart]:
    """The field ``parts`` of an extension; problems are noted."""
    if not isinstance(raw, dict) or raw.get("parts") is None:
        return []
    known = {*existing, *new_labels}
    given = check.mapping(raw, "parts", (), WHOLE)
    found: list[AddedPart] = []
    for child in given:
        if child not in existing:
            check.note(("parts", child), child, "the label of a task that the job already has", "unknown_label")
            continue
        by_position = check.mapping(given, child, ("parts",), check.limits.inputs)
        for position in by_position:
            found += _parts_of(check, by_position, child, position, known)
    if len(found) > WHOLE:
        allowed = f"at most {WHOLE} parts in one call; send the others in further calls"
        check.note_shown(("parts",), f"{len(found)} parts", allowed, "too_many")
    return list({(one.child, one.position, one.part.label, one.part.position): one for one in found}.values())


def _parts_of(
    check: Checker, by_position: Mapping[str, object], child: str, position: str, known: set[str]
) -> list[AddedPart]:
    path = ("parts", child, position)
    if not position.isdecimal() or len(position) > 9:
        check.note(path, position, "the position of a gathered input", "position")
        return []
    found: list[AddedPart] = []
    for number, value in enumerate(check.listing(by_position, position, path[:2], check.limits.inputs)):
        here = (*path, number)
        part = read_part(check, value, here)
        if part.label == child:
            check.note((*here, "label"), child, "another task: a task cannot wait for itself", "self_dependency")
        elif part.label and part.label not in known:
            check.note((*here, "label"), part.label, "the label of a task of this job", "unknown_label")
        else:
            found.append(AddedPart(child, int(position), part, here))
    return found


def find_new_parts(
    uow: UnitOfWork, wanted: Sequence[AddedPart], existing: Mapping[str, tuple[int, str]]
) -> list[AddedPart]:
    """Those of the parts that the inputs do not have yet."""
    if not wanted:
        return []
    has = values.part_values(uow.tx, sorted({existing[one.child][0] for one in wanted}))
    producers = sorted({existing[one.part.label][0] for one in wanted if one.part.label in existing})
    outputs = values.outputs(uow.tx, producers) if producers else {}

    def is_new(one: AddedPart) -> bool:
        slots = outputs.get(existing[one.part.label][0], []) if one.part.label in existing else []
        if one.part.position >= len(slots):
            return True
        return (existing[one.child][0], one.position, slots[one.part.position][1]) not in has

    return [one for one in wanted if is_new(one)]


def check_parts(
    uow: UnitOfWork,
    check: Checker,
    added: Sequence[AddedPart],
    *,
    ids: Mapping[str, int],
    output_types: Mapping[str, Sequence[str]],
) -> None:
    """Note parts whose input takes none, or whose type does not fit the output that they name."""
    if not added:
        return
    inputs = values.gathered_inputs(uow.tx, sorted({ids[one.child] for one in added}))
    counts: dict[tuple[int, int], int] = {}
    for one in added:
        place = (ids[one.child], one.position)
        found = inputs.get(place)
        if found is None or found.size:
            rule = "a gathered input without a shape" if found else "the position of a gathered input"
            check.note_shown(one.path[:3], str(one.position), rule, "position")
            continue
        check_source(check, one.part, output_types[one.part.label], one.path)
        counts[place] = counts.get(place, found.num_parts) + 1
        if counts[place] == check.limits.inputs + 1:
            check.note_shown(one.path[:3], "more parts", f"at most {check.limits.inputs} parts", "too_many")


def store_parts(
    uow: UnitOfWork,
    added: Sequence[AddedPart],
    *,
    ids: Mapping[str, int],
    produced: Mapping[str, Sequence[OutputSlot]],
) -> None:
    """Append parts to the inputs of tasks that are known to wait."""
    if not added:
        return
    inputs = values.gathered_inputs(uow.tx, sorted({ids[one.child] for one in added}))
    by_input: dict[tuple[int, int], list[Part]] = {}
    for one in added:
        by_input.setdefault((ids[one.child], one.position), []).append(one.part)
    rows = [
        row for place, parts in by_input.items() for row in part_rows(*place, inputs[place].num_parts, parts, produced)
    ]
    values.insert_parts(uow.tx, rows)
    counts = [(*place, inputs[place].num_parts + len(parts)) for place, parts in sorted(by_input.items())]
    values.set_num_parts(uow.tx, counts)
