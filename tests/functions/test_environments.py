"""Requirements of functions: which lines are allowed, how options and jobs choose, and what a graph says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from myrmidon.functions.environments import defaults_of_run
from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.requirements import BadRequirements, check_lines, document, parse_document, read_lines
from myrmidon.functions.task_options import TaskOptions
from tests.functions import tasks

HASH = f"--hash=sha256:{'a' * 64}"


@pytest.mark.parametrize(
    "line",
    [
        "numpy", "numpy==2.*", "numpy>=2,<3", "numpy ~= 2.1", "requests[socks,security]>=2", "a.b-c_d==1",
        'pywin32==306; sys_platform == "win32"', "numpy (>=2)", f"numpy==2.1 {HASH}", f"numpy==2.1 {HASH} {HASH}",
        "pkg @ https://example.com/pkg-1.0-py3-none-any.whl", "pkg @ git+https://example.com/pkg.git@v1.0",
        'pkg[x] @ https://example.com/pkg.zip ; python_version > "3"', "--index-url https://example.com/simple",
        "-i https://example.com/simple", "--extra-index-url=https://download.pytorch.org/whl/cpu",
        "--find-links https://example.com/links", "--only-binary :all:", "--no-binary numpy",
        "numpy==1!2.0.post1+local", "numpy===2.1-odd", "numpy != 2.0.*, >=1", "numpy>=2; python_version in '3.11 3.12'",
        "numpy;(sys_platform == 'linux' or os_name=='nt') and python_full_version>='3.11.2'",
    ],
)  # fmt: skip
def test_ordinary_requirements_are_allowed(line: str):
    assert len(check_lines([line])) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-r other.txt", "option -r is not allowed"),
        ("-e .", "option -e is not allowed"),
        ("-c https://example.com/c.txt", "option -c is not allowed"),
        ("--trusted-host example.com", "--trusted-host is not allowed"),
        ("--index-url http://example.com/simple", "must begin with https://"),
        ("--index-url file:///etc", "must begin with https://"),
        ("--index-url https://user:secret@example.com/simple", "must not have credentials"),
        ("pkg @ https://secret@example.com/pkg.whl", "must not have credentials"),
        ("pkg @ file:///etc/passwd", "must begin with https://"),
        ("pkg @ /etc/passwd", "must begin with https://"),
        ("./pkg", "does not begin with the name"),
        ("/pkg", "does not begin with the name"),
        ("pkg/sub", "files and folders of a bot cannot be named"),
        ("https://example.com/pkg.whl", "cannot be named"),
        ("pkg==1 -r other.txt", "-r other.txt is not allowed after a requirement"),
        ("pkg==1 --global-option=x", "--global-option is not allowed"),
        ("pkg==1 --hash=md5:abc", "--hash is not allowed"),
        ("numpy=2", "write numpy==2, numpy>=2 or numpy>=1,<2"),
        ("numpy=>2", "write numpy==2,"),
        ("numpy==", "'==' says no versions"),
        ("numpy>=2.*", "says no versions"),
        ("numpy>=1 <2", "says no versions"),
        ("numpy (>=1", "says no versions"),
        ("numpy>=1; python>3", "no condition such as python_version < '3.12'"),
        ("numpy>=1;", "no condition such as"),
        ("pkg==${VERSION}", "variables are not replaced"),
        ("pkg\x00", "cannot be printed"),
        (1, "is a text"),
    ],
)
def test_other_lines_are_refused_with_a_reason_and_without_secrets(line: Any, said: str):
    with pytest.raises(BadRequirements) as error:
        check_lines([line])
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_equal_requirements_have_one_digest():
    one = document(check_lines(["numpy==2.*", " requests ", "numpy==2.*"]))
    two = document(check_lines(["requests", "numpy==2.*", ""]))
    assert one == two
    assert document(check_lines(["requests"]))[0] != one[0]
    assert parse_document(one[1]) == ("numpy==2.*", "requests")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"requirements":"numpy"}', b'{"requirements":["-r x"]}', b'{"requirements":[],"x":1}']
)
def test_a_document_of_a_stranger_is_checked(data: bytes):
    with pytest.raises(BadRequirements):
        parse_document(data)


def test_a_lock_file_is_reduced_to_what_counts():
    pinned = f"b==2 \\\n    {HASH} \\\n    {HASH}\n    # via a\n"
    text = f"# by hand\n--index-url https://a.example/simple\n\n{pinned}a==1  # x\r\n"
    assert read_lines(text) == ("--index-url https://a.example/simple", "a==1", f"b==2 {HASH} {HASH}")


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requirements": ["-r x"]}, "not allowed"),
        ({"requirements": 3}, "write a list"),
        ({"python": "3"}, "such as '3.12'"),
        ({"python": 3.12}, "such as '3.12'"),
        ({"environment": "requirements"}, "name of an environment"),
        ({"environment": "a b"}, "name of an environment"),
        ({"environment": "gpu", "requirements": ["numpy"]}, "leave out requirements="),
        ({"environment": "gpu", "python": "3.12"}, "leave out python="),
    ],
)
def test_wrong_options_are_refused_when_a_function_is_decorated(options: Any, said: str):
    with pytest.raises((ValueError, TypeError)) as error:
        TaskOptions().changed(**options)
    assert said in str(error.value)


def node(function: Any, defaults: TaskOptions | None = None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The task of a call in a graph, and what must be uploaded."""
    builder = GraphBuilder(defaults)
    builder.call(function, (1.0,))
    made = builder.document({}, lambda _: "")
    [task] = json.loads(made.text)["tasks"].values()
    return task["task"], made.uploads


def chosen(function: Any, defaults: TaskOptions | None = None) -> tuple[str, dict[str, list[str]]]:
    task, _ = node(function, defaults)
    return task["function"].get("environment", ""), task["slices"][0]["properties"]["dimensions"]


def test_a_function_names_its_environment_and_the_bots_that_have_it():
    digest, data = document(("numpy==2.*",))
    task, uploads = node(tasks.half.options(requirements=["numpy==2.*"]))
    assert task["function"]["environment"] == digest
    assert uploads == {digest: data}
    assert chosen(tasks.half.options(requirements=["numpy"], python="3.12"))[1] == {
        "pool": ["default"],
        "python": ["3.12"],
        "environment": ["requirements"],
    }
    assert chosen(tasks.half.options(environment="gpu")) == (
        "name:gpu",
        {"pool": ["default"], "environment": ["gpu"]},
    )
    assert "environment" not in node(tasks.half)[0]["function"]


def test_the_defaults_of_a_job_are_for_functions_that_choose_nothing():
    job = TaskOptions().changed(requirements=["numpy"], python="3.12")
    own = document(("requests",))[0]
    assert chosen(tasks.half, job)[0] == document(("numpy",))[0]
    assert chosen(tasks.half.options(requirements=["requests"]), job)[0] == own
    assert chosen(tasks.half.options(requirements=["requests"]), job)[1]["python"] == ["3.12"]
    assert chosen(tasks.half.options(requirements=[]), job)[0] == ""
    assert chosen(tasks.half.options(environment="gpu"), job) == (
        "name:gpu",
        {"pool": ["default"], "environment": ["gpu"]},
    )
    gpu = TaskOptions().changed(environment="gpu")
    assert chosen(tasks.half, gpu)[0] == "name:gpu"
    assert chosen(tasks.half.options(requirements=["requests"]), gpu)[0] == own
    assert chosen(tasks.half.options(python="3.12"), gpu)[0] == ""


def test_a_later_choice_replaces_an_earlier_one():
    function = tasks.half.options(requirements=["numpy"], python="3.12").options(environment="gpu")
    assert chosen(function)[0] == "name:gpu"
    assert chosen(function.options(requirements=["numpy"]))[0] == document(("numpy",))[0]


def test_a_call_on_a_bot_gets_the_environment_of_the_function_that_submits_it():
    digest = "ab" * 32
    assert chosen(tasks.half, defaults_of_run(digest)) == (
        digest,
        {**chosen(tasks.half)[1], "environment": ["requirements"]},
    )
    assert chosen(tasks.half, defaults_of_run("name:gpu"))[0] == "name:gpu"
    assert chosen(tasks.half, defaults_of_run(""))[0] == ""
    assert chosen(tasks.half.options(requirements="no.lock"), defaults_of_run(digest))[0] == digest


def test_a_lock_file_is_read_when_the_job_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    function = tasks.half.options(requirements=tmp_path / "my.lock")
    with pytest.raises(GraphError, match=r"there is no file .*my\.lock"):
        node(function)
    (tmp_path / "my.lock").write_text("numpy==2.1\n")
    assert chosen(function)[0] == document(("numpy==2.1",))[0]
    monkeypatch.chdir(tmp_path)
    assert chosen(tasks.half.options(requirements="my.lock"))[0] == document(("numpy==2.1",))[0]
    (tmp_path / "my.lock").write_text("-r other\n")
    with pytest.raises(GraphError, match=r"my\.lock: requirement '-r other'"):
        node(function)
    (tmp_path / "my.lock").write_text("# nothing\n")
    with pytest.raises(GraphError, match="has no requirements"):
        node(function)


def test_a_command_has_no_environment():
    with pytest.raises(GraphError, match="are for functions"):
        GraphBuilder().command(["true"], TaskOptions().changed(requirements=["numpy"]))


def test_the_nodes_that_expand_a_map_run_where_the_mapped_calls_run_and_need_no_environment():
    builder = GraphBuilder(TaskOptions().changed(requirements=["requests"]))
    items = builder.call(tasks.shards.options(requirements=[]), ("a/b",))
    builder.map(tasks.count.options(requirements=["numpy"]), items)
    made = builder.document({}, lambda _: "")
    nodes = json.loads(made.text)["tasks"]
    digest = document(("numpy",))[0]
    assert not any("environment" in one["task"]["function"] for one in nodes.values())
    dimensions = {label: one["task"]["slices"][0]["properties"]["dimensions"] for label, one in nodes.items()}
    assert dimensions["count/expand"]["environment"] == dimensions["count"]["environment"] == ["requirements"]
    assert digest in made.uploads
    plan = base64.b64decode(nodes["count/expand"]["task"]["inputs"][1]["payload"]["inline"])
    assert f'"environment":"{digest}"'.encode() in plan
