"""The tables of Spider's storage schema can be read with their columns, as the decision record says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, constant, finish, output_of

RECORD = Path(__file__).parents[2] / "docs/decisions/0045-one-row-for-what-is-written-once.md"
QUERIES = dict(re.findall(r"```sql\n-- (\w+).*?\n(.*?)```", RECORD.read_text(), re.DOTALL))
COLUMNS = {
    "workers": ["id", "heartbeat"],
    "schedulers": ["id", "address", "port", "heartbeat"],
    "resource_groups": ["id", "external_id"],
    "jobs": ["id", "resource_group_id", "creation_time", "state", "max_num_retries", "num_retries"],
    "tasks": [
        "id", "job_id", "package_name", "func_name", "language", "state", "num_parents", "num_succeeded_parents",
        "task_graph_insertion_id", "timeout", "max_num_retries", "num_retries", "instance_id",
    ],
    "completed_task_control_flow_deps": ["parent", "child"],
    "input_tasks": ["job_id", "task_id"],
    "output_tasks": ["job_id", "task_id"],
    "shared_values": ["id", "task_graph_data_id", "type", "payload"],
    "resource_group_to_shared_value_ref": ["id", "resource_group_id"],
    "job_to_shared_value_ref": ["id", "job_id"],
    "values": ["id", "task_graph_data_id", "owner_job_id", "type", "payload"],
    "task_inputs": ["task_id", "position", "type", "value_id", "shared_value_id"],
    "task_outputs": ["task_id", "position", "type", "value_id", "shared_value_id"],
    "task_control_flow_deps": ["parent", "child"],
    "task_instances": ["task_id", "start_time"],
    "shared_value_localities": ["id", "address"],
}  # fmt: skip


@pytest.fixture
def w(db: Any) -> World:
    world = World(db).found()
    world.bot()
    return world


def rows(w: World, table: str) -> list[Any]:
    source = f"({QUERIES[table]}) t" if table in QUERIES else table
    return w.all(f"SELECT {', '.join(COLUMNS[table])} FROM {source} ORDER BY 1, 2")


def test_every_table_can_be_read(w: World) -> None:
    for table in COLUMNS:
        rows(w, table)


def test_a_job_is_found_in_all_of_them(w: World) -> None:
    job = w.job({"a": w.call_of(constant(b"\x05")), "b": w.call_of(output_of("a"))})
    w.report(finish(w.claim()[0], b"\x06"))
    a, b = job.task_ids["a"], job.task_ids["b"]
    assert [(row[0], row[5], row[7]) for row in rows(w, "tasks")] == [(a, "SUCCEEDED", 0), (b, "READY", 1)]
    assert (rows(w, "input_tasks"), rows(w, "output_tasks")) == ([(job.job_id, a)], [(job.job_id, b)])
    assert rows(w, "task_control_flow_deps") == rows(w, "completed_task_control_flow_deps") == [(a, b)]
    numbers_and_payloads = {(row[1], row[4] and bytes(row[4])) for row in rows(w, "values")}
    assert numbers_and_payloads == {(0, b"\x06"), (1, None), (2, b"\x05")}
    assert [row[0] for row in rows(w, "task_instances")] == [a]
