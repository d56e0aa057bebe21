"""Rows become the structs of answers: ids as hexadecimal digits, JSON as it is stored, nulls as they are."""

from __future__ import annotations

import pytest
from msgspec import Struct, json

from myrmidon.model.ids import show_run, show_task
from myrmidon.store.views.selection import Selection
from myrmidon.wire.fields import HexId, Seconds, TaskId

TASK = 0x7C07A39DC8000011


class Line(Struct, frozen=True):
    task_id: TaskId
    run: str | None
    parent: TaskId | None
    queue: HexId
    held: bool
    tags: list[str]
    waited_s: Seconds | None
    num_parts: int
    message: str = ""


def a_selection() -> Selection[Line]:
    return Selection(
        Line, "t", left_out=["message"], task_id="t.id", run=("t.id", "t.run_number"), num_parts="COUNT(*)"
    )


def test_fields_are_columns_with_their_names_unless_others_are_named():
    columns = "t.id, t.run_number, t.parent, t.queue, t.held, t.tags, t.waited_s, COUNT(*)"
    assert (a_selection().columns, a_selection().width) == (columns, 8)


def test_a_row_is_shown_as_clients_get_it():
    line = a_selection()((TASK, 3, TASK + 16, 255, 1, '["a:b"]', 1_500_000, 7, "a further column"), "said")
    assert json.decode(json.encode(line)) == {
        "task_id": show_task(TASK),
        "run": show_run(TASK, 3),
        "parent": show_task(TASK + 16),
        "queue": "ff",
        "held": True,
        "tags": ["a:b"],
        "waited_s": 1.5,
        "num_parts": 7,
        "message": "said",
    }


def test_what_is_null_stays_null():
    line = a_selection()((TASK, None, None, 1, 0, "[]", None, 0))
    assert (line.run, line.parent, line.held, line.waited_s, line.message) == (None, None, False, None, "")


def test_the_task_of_a_run_is_selected_once():
    assert Selection(Line, "t", run=("u.task_id", "u.run"), parent="u.task_id").columns.count("u.task_id") == 1


def test_a_struct_whose_fields_have_names_only_can_be_selected():
    class Named(Struct, frozen=True, kw_only=True):
        id: TaskId
        size: int = 0

    assert Selection(Named, "t")((TASK, 5)) == Named(id=show_task(TASK), size=5)


def test_a_column_for_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="Line has no fields other"):
        Selection(Line, "t", other="t.other")
