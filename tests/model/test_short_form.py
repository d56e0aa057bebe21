"""The short form of tasks: what it becomes, what is refused or has no effect, and how problems are named."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.short_form import ShortForms, expand_task, expand_tasks, named_after_program, rename_problems
from myrmidon.model.validation import Checker

NOW = 1_800_000_000_000_000


def expanded(task: object, **more: Any) -> tuple[Any, Checker, ShortForms]:
    check, forms = Checker(), ShortForms()
    return expand_task(check, task, ("task",), forms, default_pool="p", now=NOW, **more), check, forms


def expand(task: object) -> Any:
    request, check, forms = expanded(task)
    assert not check.problems
    assert forms.paths
    return request


def problems(task: object) -> dict[str, str]:
    """The paths of problems with what is allowed there."""
    _, check, _ = expanded(task)
    return {problem.path: problem.allowed for problem in check.problems}


def test_fields_of_the_properties_stand_beside_those_of_the_task():
    task = {"command": ["x"], "env": {"A": "1"}, "dimensions": {"os": "Linux"}, "expiration_s": 9, "priority": 7}
    properties = {"command": ["x"], "env": {"A": "1"}, "dimensions": {"pool": ["p"], "os": ["Linux"]}}
    assert expand(task) == {"priority": 7, "slices": [{"properties": properties, "expiration_s": 9}]}


def test_a_function_may_have_the_short_form_too():
    function = {"package_name": "m", "func_name": "f"}
    assert expand({"function": function, "dimensions": {"os": "Mac"}}) == {
        "function": function, "slices": [{"properties": {"dimensions": {"pool": ["p"], "os": ["Mac"]}}}],
    }  # fmt: skip
    assert expand({"function": function})["slices"] == [{"properties": {"dimensions": {"pool": ["p"]}}}]


def test_beside_a_command_the_payload_is_data_for_the_command():
    task = expand({"command": ["x"], "payload": {"comand": 1}})
    assert task["slices"][0]["properties"]["payload"] == {"comand": 1}


def test_a_payload_becomes_one_slice_and_stays_whole_for_the_command():
    payload = {"command": ["x"], "env": {"A": "1"}, "maxRunTime": 5, "wait_for_capacity": False, "extra": [1]}
    properties = {"command": ["x"], "env": {"A": "1"}, "execution_timeout_s": 5, "dimensions": {"pool": ["p"]}}
    assert expand({"payload": payload, "priority": 7}) == {
        "priority": 7, "slices": [{"properties": {**properties, "payload": payload}, "wait_for_capacity": False}],
    }  # fmt: skip


@pytest.mark.parametrize("form", [{}, {"payload": {}}])
def test_numbers_in_a_command_and_in_variables_are_text(form):
    fields = {"command": ["sleep", 5, True], "env": {"N": 1.5}}
    properties = expand({"payload": fields} if form else fields)["slices"][0]["properties"]
    assert (properties["command"], properties["env"]) == (["sleep", "5", True], {"N": "1.5"})


def test_provisioner_and_worker_type_are_dimensions_and_the_payload_wins():
    task = expand({"provisionerId": "aws", "workerType": "big", "payload": {"command": ["x"]}})
    assert task["slices"][0]["properties"]["dimensions"] == {"pool": ["aws"], "worker_type": ["big"]}
    task = expand({"provisionerId": "aws", "payload": {"command": ["x"], "dimensions": {"pool": "own"}}})
    assert task["slices"][0]["properties"]["dimensions"] == {"pool": ["own"]}


def test_a_deadline_is_counted_from_now():
    assert expand({"deadline": "2027-01-15T08:01:00Z", "payload": {"command": ["x"]}})["deadline_s"] == 60
    assert set(problems({"deadline": "2001-01-01", "payload": {}})) == {"task.deadline"}
    assert set(problems({"deadline": 5, "payload": 7})) == {"task.deadline", "task.payload"}


@pytest.mark.parametrize("task", [None, 7, [], {}, {"slices": []}, {"slices": [], "payload": {}}, {"name": "x"}])
def test_what_is_no_short_task_is_left_for_validation(task):
    assert expanded(task)[0] is task


@pytest.mark.parametrize("raw", [None, 7, [], {"tasks": 7}, {"tasks": {"a": 7}}, {"tasks": [{"task": {"slices": []}}]}])
def test_a_document_without_short_tasks_is_left_as_it_is(raw):
    assert expand_tasks(Checker(), raw, ShortForms(), default_pool="p", now=NOW) is raw


# ---------------------------------------------------------------- fields that nothing is done with


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("comand", "`command` (did you mean that?)"),
        ("max_run_time", "`maxRunTime` (did you mean that?)"),
        ("executionTimeoutS", "`execution_timeout_s` (did you mean that?)"),
        ("relativeCwd", "`relative_cwd` (did you mean that?)"),
        ("outputs", "a field of the task, beside the payload"),
        ("priority", "a field of the task, beside the payload"),
        ("image", "commands run on the bot itself"),
        ("capabilities", "commands run on the bot itself"),
        ("artifacts", "declare `outputs` of a task"),
        ("mounts", "use `caches`"),
        ("onExitStatus", "use `reruns`"),
        ("mine", "or `extra` for what only the command reads"),
    ],
)
def test_a_field_of_a_payload_that_is_not_read_is_refused_with_what_to_write(key, said):
    [(path, allowed)] = problems({"payload": {"command": ["x"], key: {"a": 1}}}).items()
    assert path == f"task.payload.{key}"
    assert said in allowed


def test_a_field_that_asks_for_nothing_is_no_problem():
    assert not problems({"payload": {"command": ["x"], "artifacts": {}, "mounts": [], "image": None, "mine": None}})


def test_two_names_of_one_field_contradict_each_other():
    assert set(problems({"payload": {"maxRunTime": 1, "execution_timeout_s": 2}})) == {
        "task.payload.execution_timeout_s"
    }


def test_fields_without_effect_are_named_once_each():
    check, forms = Checker(), ShortForms()
    task = {"payload": {"command": ["x"], "image": "i"}, "expires": "2027-01-01", "scopes": [], "created": "2026-01-01"}
    document = {"tasks": {"a": {"task": task}, "b": {"task": task}}}
    expand_tasks(check, document, forms, default_pool="p", now=NOW, ignored={"image": "no containers"})
    assert check.warnings() == [
        "tasks.a.task.payload.image and 1 more has no effect: no containers",
        "tasks.a.task.expires and 1 more has no effect: results are kept as long as the server's settings say",
    ]
    assert not check.problems


# ---------------------------------------------------------------- names


def test_a_task_without_a_name_is_named_after_its_program():
    assert named_after_program(expand({"command": ["/bin/true"]}))["name"] == "true"
    assert named_after_program(expand({"command": ["x"], "name": "mine"}))["name"] == "mine"
    assert named_after_program(expand({"command": "x"}))["name"] == "command"


@pytest.mark.parametrize(
    ("task", "path", "shown"),
    [
        ((), "slices[0].properties.execution_timeout_s", "payload.maxRunTime"),
        (("tasks", "a", "task"), "tasks.a.task.slices[0].properties.payload.env.A", "tasks.a.task.payload.env.A"),
        (("tasks", "a", "task"), "tasks.a.task.slices[0].expiration_s", "tasks.a.task.payload.expiration_s"),
        (("tasks", "a", "task"), "tasks.a.task.deadline_s", "tasks.a.task.deadline"),
        (("tasks", "a", "task"), "tasks.b.task.slices[0].properties.env", "tasks.b.task.slices[0].properties.env"),
        (("tasks", "a", "task"), "tasks.b.task.deadline_s", "tasks.b.task.deadline_s"),
        ((), "slices[0].properties.command[1]", "payload.command[1]"),
    ],
)  # fmt: skip
def test_problems_are_named_as_the_task_was_written(task, path, shown):
    error = InvalidRequest([Problem(path, "1", "2", "c")])
    assert rename_problems(error, ShortForms({task: True})).problems[0].path == shown


def test_problems_of_fields_beside_the_task_are_named_so():
    error = InvalidRequest([Problem("slices[0].properties.payload.env.A", "1", "2", "c")])
    assert rename_problems(error, ShortForms({(): False})).problems[0].path == "payload.env.A"
