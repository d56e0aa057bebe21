"""The context of a run, and the local one of unit tests."""

from __future__ import annotations

import logging

import pytest

from myrmidon.functions.context import context

SOURCE = """
    from __future__ import annotations

    import threading
    import time
    from typing import List

    from myrmidon.functions.context import context

    kept = []

    def ids() -> List[str]:
        run = context()
        return [run.task_id, run.job_id, run.label, run.bot_id, str(run.run), str(run.is_local)]

    def progress(value: float) -> None:
        context().progress(value)

    def many() -> None:
        for n in range(1000):
            context().progress(n / 1000)
        context().progress(1)

    def in_thread() -> None:
        thread = threading.Thread(target=lambda: context().progress(0.5))
        thread.start()
        thread.join()

    def keep() -> None:
        kept.append(context())

    def use_kept() -> None:
        kept[0].progress(0.25)

    def log() -> None:
        context().log.info("by the context")
"""


def test_a_function_knows_its_run(start_on):
    executor = start_on(SOURCE)
    assert executor.result("ids", run="5cee488008810a") == ["t1", "j1", "l1", "b1", "10", "False"]


def test_progress_is_sent_to_the_bot(start_on):
    executor = start_on(SOURCE)
    answer = executor.run("progress", 0.5)
    assert executor.other == [{"op": "progress", "id": answer["id"], "value": 0.5}]
    executor.run("in_thread")
    assert executor.other[1]["value"] == 0.5


def test_progress_that_comes_quickly_is_sent_rarely_but_the_end_always(start):
    executor = start(SOURCE)
    executor.run("many")
    assert executor.other[0]["value"] == 0
    assert executor.other[-1]["value"] == 1
    assert len(executor.other) < 500


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_progress_out_of_range_is_an_error_here_and_on_a_bot(start, value):
    assert start(SOURCE).error("progress", value)["type"] == "builtins.ValueError"
    with pytest.raises(ValueError, match="from 0 to 1"):
        context().progress(value)


def test_the_context_of_a_run_that_has_ended_says_nothing(start):
    executor = start(SOURCE)
    executor.run("keep")
    executor.run("use_kept")
    assert executor.other == []


def test_the_log_of_the_context_is_the_log_of_the_run(start):
    assert start(SOURCE).run("log")["stderr"].endswith("INFO myrmidon.task: by the context\n")


def test_outside_of_a_bot_the_context_is_local(caplog):
    run = context()
    assert (run.task_id, run.job_id, run.label, run.bot_id, run.run, run.is_local) == ("", "", "", "", 0, True)
    run.progress(0.5)
    run.flush()
    with caplog.at_level(logging.INFO):
        run.log.info("shown")
    assert "shown" in caplog.text


def test_a_local_submit_is_a_call():
    assert context().submit(max, 1, 2) == 2
    assert context().map(pow, [1, 2, 3], 2) == [1, 4, 9]
