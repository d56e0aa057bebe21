"""Environments of functions through the real server, the SDK and bots: built once, chosen by name or by version."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from myrmidon import Client, TaskFailed
from tests.bot.bots import python38
from tests.bot.slots.packages import a_wheel, digest_of, installers
from tests.bot.test_live import live_bot, log
from tests.live import LiveServer, live_server

pytestmark = pytest.mark.full

MODULE = "functions_with_environments"
SOURCE = """
    import os
    import sys
    from typing import Dict

    from myrmidon import context, task

    @task(requirements=["mgreeting==1.*"])
    def greet(name: str) -> str:
        import mgreeting
        return mgreeting.hello(name)

    @task
    def greet_by_default(name: str) -> str:
        import mgreeting
        return mgreeting.hello(name)

    @task(requirements="mgreeting.lock")
    def greet_by_lock(name: str) -> str:
        import mgreeting
        return mgreeting.hello(name)

    @task(requirements=["mgreeting==1.*"])
    def greet_later(name: str) -> str:
        return context().submit(greet_by_default, name)

    @task(requirements=["nothing-of-this-name==1"])
    def impossible() -> int:
        return 1

    @task
    def where() -> Dict[str, str]:
        return {
            "version": "%d.%d" % sys.version_info[:2],
            "prefix": sys.prefix,
            "venv": os.environ.get("VIRTUAL_ENV", ""),
            "path": os.environ["PATH"],
        }

    @task
    def add(a: int, b: int) -> int:
        return a + b
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of the client's only, with its lock file."""
    folder = tmp_path_factory.mktemp("client")
    (folder / f"{MODULE}.py").write_text(dedent(SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module(MODULE)
        del sys.modules[MODULE]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    a_wheel(folder, "mgreeting", "1.0", {"mgreeting.py": "def hello(name): return f'hello {name}'\n"})
    a_wheel(folder, "mgreeting", "2.0", {"mgreeting.py": "def hello(name): return f'good day {name}'\n"})
    return folder


@pytest.fixture(scope="module")
def server(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with two bots on one host."""
    folder = tmp_path_factory.mktemp("bots")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in installers(packages, uv=True).items():
            patch.setenv(name, value)
        with (
            live_server() as started,
            live_bot(started, folder / "b1", "default", "--slots", "2"),
            live_bot(started, folder / "b2", "default", "--slots", "2"),
        ):
            yield started


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


def task_ids(job: Any) -> list[str]:
    return list(job._submitted.task_ids.values())


@pytest.mark.short
def test_two_bots_build_an_environment_once_for_many_calls(client: Client, server: LiveServer, tasks: ModuleType):
    names = [str(number) for number in range(40)]
    greet = tasks.greet.options(requirements=["mgreeting>=1.0,<1.5"])  # no other test builds this environment
    before = environments(server)
    with client.new_job("greet") as job:
        handles = job.map(greet, names)
    assert job.result(handles) == [f"hello {name}" for name in names]
    assert client.submit(greet, "you").result() == "hello you"
    shown = [log(server, task, "stderr") for task in task_ids(job)]
    assert any(b"[myrmidon: built the environment in" in text for text in shown)
    assert len(environments(server)) == len(before) + 1


def environments(server: LiveServer) -> list[Path]:
    """The complete environments of the bots' host."""
    folder = Path(server.get("/api/v1/bots/b1")[1]["state"]["folder"]).parent
    return sorted((folder / "myrmidon-environments").glob("*.json"))


def test_the_environment_of_a_job_is_for_functions_without_their_own(client: Client, tasks: ModuleType):
    with client.new_job("default", requirements=["mgreeting==2.0"]) as job:
        handles = [tasks.greet_by_default("a"), tasks.greet("b"), tasks.add.options(requirements=[])(1, 2)]
    assert job.result(handles) == ["good day a", "hello b", 3]


def test_options_replace_the_requirements_of_a_function(client: Client, tasks: ModuleType):
    assert client.submit(tasks.greet.options(requirements=["mgreeting==2.*"]), "you").result() == "good day you"


def test_a_lock_file_is_sent_and_its_hashes_are_verified(client: Client, tasks: ModuleType, packages: Path):
    lock = Path(tasks.__file__ or "").with_name("mgreeting.lock")
    wheel = packages / "mgreeting-2.0-py3-none-any.whl"
    lock.write_text(f"# made by hand\nmgreeting==2.0 \\\n    --hash=sha256:{digest_of(wheel)}  # the wheel\n")
    assert client.submit(tasks.greet_by_lock, "you").result() == "good day you"
    lock.write_text(f"mgreeting==2.0 --hash=sha256:{'0' * 64}\n")
    failure = client.submit(tasks.greet_by_lock, "you").exception()
    assert isinstance(failure, TaskFailed)
    assert failure.reason == "environment_failed"
    assert "hash" in str(failure).lower()


def test_a_rerun_with_new_code_uses_the_lock_file_as_it_is_now(client: Client, tasks: ModuleType):
    lock = Path(tasks.__file__ or "").with_name("mgreeting.lock")
    lock.write_text("mgreeting==3.0\n")
    with client.new_job("greet") as job:
        greeting = tasks.greet_by_lock("you")
    with pytest.raises(TaskFailed, match="cannot be installed"):
        job.result(greeting)
    lock.write_text("mgreeting==1.0\n")
    job.rerun(code="new")
    assert job.result(greeting) == "hello you"


def test_the_example_with_requirements(server: LiveServer, tasks: ModuleType, packages: Path, tmp_path: Path):
    a_wheel(packages, "humanize", "4.9", {"humanize.py": "def naturalsize(size): return f'{size / 1000:.1f} kB'\n"})
    root = Path(__file__).parents[3]
    env = {"MYRMIDON_SERVER": server.url, "MYRMIDON_TOKEN": server.token, "PYTHONPATH": str(root / "src")}
    words = [sys.executable, str(root / "examples" / "requirements.py"), "1500", "2000"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == ["1.5 kB", "2.0 kB", ""], done.stderr


def test_a_function_is_reproduced_with_its_requirements(server: LiveServer, client: Client, tasks: ModuleType):
    with client.new_job("greet") as job:
        greeting = tasks.greet.options(requirements=["mgreeting==2.0"])("you")
    job.result(greeting)
    env = {**os.environ, "MYRMIDON_SERVER": server.url, "MYRMIDON_TOKEN": server.token}
    words = [sys.executable, "-m", "myrmidon", "task", "reproduce", *task_ids(job)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "'good day you'\n"), done.stderr


def test_calls_that_a_function_adds_run_in_its_environment(client: Client, tasks: ModuleType):
    assert client.submit(tasks.greet_later, "you").result() == "hello you"


@pytest.mark.short
def test_requirements_that_do_not_install_end_the_task_once_with_the_last_lines(
    client: Client, server: LiveServer, tasks: ModuleType
):
    future = client.submit(tasks.impossible)
    failure = future.exception()
    assert isinstance(failure, TaskFailed)
    assert (failure.state, failure.reason) == ("CLIENT_ERROR", "environment_failed")
    assert "the requirements cannot be installed" in str(failure)
    assert "nothing-of-this-name" in str(failure)
    assert len(server.get(f"/api/v1/tasks/{failure.task_id}")[1]["runs"]) == 1
    assert b"nothing-of-this-name" in log(server, failure.task_id, "stderr")


def test_the_interpreter_of_the_environment_finds_its_programs(client: Client, server: LiveServer, tasks: ModuleType):
    found = client.submit(tasks.where.options(requirements=["mgreeting==1.*"])).result()
    assert found["prefix"] == found["venv"]
    assert found["path"].startswith(f"{found['venv']}/bin:")
    assert "/myrmidon-environments/" in found["venv"]


def test_a_bot_shows_its_environments_and_offers_to_build_them(server: LiveServer, client: Client, tasks: ModuleType):
    client.submit(tasks.greet, "you").result()
    _, shown = server.get("/api/v1/bots/b1")
    assert "requirements" in shown["dimensions"]["environment"]


def test_an_environment_that_no_bot_has_is_named_as_the_reason_to_wait(
    client: Client, server: LiveServer, tasks: ModuleType
):
    with client.new_job("gpu", environment="gpu") as job:
        tasks.add(1, 2)
    [task] = task_ids(job)
    answer = json.dumps(server.get(f"/api/v1/tasks/{task}/why")[1])
    job.cancel()
    assert "environment" in answer
    assert "gpu" in answer


def test_a_request_whose_dimensions_lack_its_environment_is_refused(server: LiveServer):
    for environment, wanted in (("name:gpu", "gpu"), ("0" * 64, "requirements")):
        function = {"package_name": "a", "func_name": "b", "environment": environment}
        task = {"name": "x", "function": function, "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}]}
        status, answer = server.post("/api/v1/jobs", {"job": {"name": "x", "tasks": {"x": {"task": task}}}})
        assert status == 400
        assert f"{wanted}, because the function needs this environment" in json.dumps(answer)


OLD = python38()


@pytest.mark.skipif(OLD is None, reason="there is no Python 3.8 here")
def test_python_chooses_an_interpreter_and_environments_are_chosen_by_name(
    packages: Path, tasks: ModuleType, tmp_path: Path
):
    assert OLD is not None
    named = tmp_path / "named"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(named)], check=True)
    site = next((named / "lib").iterdir()) / "site-packages"
    (site / "mgreeting.py").write_text("def hello(name): return f'welcome {name}'\n")
    settings = json.dumps({"pythons": [OLD], "environments": {"gpu": str(named), "broken": str(tmp_path / "none")}})
    config = tmp_path / "fleet"
    config.mkdir()
    (config / "bot_config.py").write_text(f"import json\ndef get_settings(bot):\n    return json.loads({settings!r})\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in installers(packages, uv=True).items():
            patch.setenv(name, value)
        with (
            live_server(config_dir=str(config)) as server,
            live_bot(server, tmp_path / "bots" / "b1", "default", "--slots", "2"),
            Client(server.url, server.token) as client,
        ):
            _, shown = server.get("/api/v1/bots/b1")
            assert {"3.8", "{}.{}".format(*sys.version_info[:2])} <= set(shown["dimensions"]["python"])
            assert shown["dimensions"]["environment"] == ["gpu", "requirements"]
            old = tasks.where.options(python="3.8")
            assert client.submit(old).result()["version"] == "3.8"
            assert client.submit(tasks.where).result()["version"] == "{}.{}".format(*sys.version_info[:2])
            built = client.submit(old.options(requirements=["mgreeting==1.*"])).result()
            assert (built["version"], built["prefix"]) == ("3.8", built["venv"])
            assert client.submit(tasks.greet_by_default.options(environment="gpu"), "you").result() == "welcome you"
            events = server.get("/api/v1/bots/b1/events")[1]
            assert "settings.environments.broken" in json.dumps(events)
