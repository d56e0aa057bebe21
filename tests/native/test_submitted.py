"""Programs whose functions submit functions of a library while they run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from myrmidon import Client
from tests.functions.test_programs import run, write
from tests.live import LiveServer
from tests.native import building
from tests.native.building import SOURCES

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("client")]

DECLARED = """
    from myrmidon import task

    @task(library="./libscale.so")
    def scale(value: int) -> int:
        raise NotImplementedError
"""
PROGRAM = """
    import shutil
    from myrmidon import Client, context, task
    from scaling import scale

    @task
    def scaled(value: int) -> int:
        return context().submit(scale, value)

    if __name__ == "__main__":
        with Client() as client:
            with client.new_job("scaled", id="{id}") as job:
                result = scaled(7)
            print(job.result(result), len(list(client.job(job.id).tasks())))
            {then}
"""


def use_factor(folder: Path, factor: int, name: str = "libscale.so") -> None:
    shutil.copy(building.cpp(SOURCES / "scale.cpp", f"-DFACTOR={factor}"), folder / name)


@pytest.mark.short
def test_a_script_sends_the_library_that_a_module_declares_although_no_node_calls_it(
    server: LiveServer, tmp_path: Path
):
    write(tmp_path, "scaling.py", DECLARED)
    use_factor(tmp_path, 10)
    done = run(server, tmp_path, PROGRAM.format(id="script", then=""))
    assert (done.stdout, done.stderr) == ("70 2\n", "")


def test_a_rerun_with_new_code_submits_the_library_as_it_is_now(server: LiveServer, tmp_path: Path):
    write(tmp_path, "scaling.py", DECLARED)
    use_factor(tmp_path, 10)
    use_factor(tmp_path, 20, "libnew.so")
    then = """shutil.copy("libnew.so", "libscale.so")
            job.rerun(failed=False, code="new")
            print(job.result(result), len(list(client.job(job.id).tasks())))
    """
    done = run(server, tmp_path, PROGRAM.format(id="rerun", then=then))
    assert (done.stdout, done.stderr) == ("70 2\n140 2\n", "")


def test_a_changed_library_is_what_a_resumed_function_submits(server: LiveServer, client: Client, tmp_path: Path):
    write(tmp_path, "scaling.py", DECLARED)
    program = PROGRAM.format(id="resumed", then="")
    tasks = []
    for factor in (10, 10, 20):
        use_factor(tmp_path, factor)
        done = run(server, tmp_path, program)
        assert (done.stdout, done.stderr) == (f"{7 * factor} 2\n", "")
        tasks.append({one.task_id for one in client.job("resumed").tasks() if one.deduped_from is None})
    first, unchanged, changed = tasks
    assert (len(first), unchanged, len(changed)) == (2, first, 2)
    assert not first & changed
