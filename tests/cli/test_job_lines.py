"""The lines that show the tasks of a job."""

from __future__ import annotations

import itertools

import msgspec
from msgspec import structs

from myrmidon.cli import output
from myrmidon.cli.job_lines import describe_end_on_bot, fit_groups, tree_lines
from myrmidon.sdk.job_graph import blockers, describe_end
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.jobs import GraphGroup, JobTask

_numbers = itertools.count()


def a_task(label: str, state: str = "WAITING", *requires: str, left: tuple[str, ...] | None = None) -> JobTask:
    given = dict.fromkeys(JobTask.__struct_fields__) | {
        "label": label, "task_id": f"1{next(_numbers):02x}", "state": state, "reason": "", "requires": list(requires),
        "requires_left": list(requires if left is None else left), "reruns": 0, "reruns_left": 0, "held": False,
        "killing": False, "priority": 200, "modified_at": 1, "message": "",
    }  # fmt: skip
    return msgspec.convert(given, JobTask)


def test_a_failed_function_says_its_exception_and_a_failed_command_its_exit_code():
    command = structs.replace(a_task("a", "FAILED"), exit_code=2, reason="exit_code", bot_id="b1")
    unknown = structs.replace(command, exit_code=127, reason="start_failed", message="no such program: mke")
    function = structs.replace(
        command, exit_code=1, message="ValueError: bad\nmore", error=FunctionError(type="ValueError")
    )
    assert [describe_end_on_bot(task) for task in (command, unknown, function)] == [
        "FAILED with exit code 2 on b1",
        "FAILED with exit code 127 (start_failed) on b1: no such program: mke",
        "FAILED on b1: ValueError: bad",
    ]
    assert plain(tree_lines([function]))[0].endswith("a  ValueError: bad")
    assert len(describe_end(structs.replace(function, message="x" * 5000))) < 300


def test_a_signal_is_shown_as_task_show_does():
    killed = structs.replace(a_task("a", "KILLED"), exit_code=-15, reason="cancelled", bot_id="b1")
    assert describe_end_on_bot(killed) == "KILLED with exit code 143, signal 15 (cancelled) on b1"
    assert plain(tree_lines([killed]))[0].endswith("a  exit code 143, signal 15")


def test_a_running_task_shows_how_far_it_has_come():
    running = structs.replace(a_task("a", "RUNNING"), progress=0.254)
    ended = structs.replace(running, state="SUCCEEDED")
    assert plain(tree_lines([running]))[0].endswith("a  25%")
    assert plain(tree_lines([ended]))[0].endswith("a")


def a_group(number: int, **counts: int) -> GraphGroup:
    return GraphGroup(id=number, prefix=f"g{number}", depth=0, num_nodes=sum(counts.values()), counts=counts)


def plain(lines: list[str]) -> list[str]:
    return [output.render(line, colour=False) for line in lines]


def test_a_task_is_blocked_by_the_failure_that_it_cannot_do_without():
    tasks = [
        a_task("a", "FAILED"),
        a_task("b", "RUNNING"),
        a_task("c", "WAITING", "a", "b"),
        a_task("d", "WAITING", "c"),
        a_task("e", "WAITING", "b"),
        a_task("f", "WAITING", "a", "b", left=("b",)),
    ]
    assert blockers(tasks) == {"c": "a", "d": "a"}, "f starts however its parents end, and e waits for b alone"


def test_a_chain_of_ten_thousand_tasks_is_a_tree():
    chain = [a_task("t0", "FAILED"), *(a_task(f"t{n}", "WAITING", f"t{n - 1}") for n in range(1, 10_000))]
    lines = plain(tree_lines(chain))
    assert len(lines) == 10_000
    assert lines[1] == "WAITING                 t1  (cannot run: t0 did not succeed)"
    assert len(lines[-1]) < 120, "a deep task is not indented out of sight"


def test_groups_that_do_not_fit_are_counted_and_failures_are_kept():
    groups = [a_group(n, SUCCEEDED=2) for n in range(100)]
    groups[70] = a_group(70, FAILED=3, WAITING=1)
    groups[80] = a_group(80, RUNNING=1)
    lines = plain(fit_groups(groups, 4))
    assert [line.split()[0] for line in lines] == ["g0*", "g70*", "g80", "..."]
    assert lines[1].endswith("3 FAILED, 1 WAITING")
    assert lines[3] == "... 97 more groups              194 SUCCEEDED"
    crowded = plain(fit_groups([a_group(n, FAILED=5) for n in range(10)], 3))
    assert crowded[2].endswith("40 FAILED")
