"""Builds of environments that several runs want, without a bot."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import cast

from myrmidon.bot.machine.environment_cache import EnvironmentCache, EnvironmentOffer
from myrmidon.bot.run.reports import Problem
from myrmidon.bot.run.run import ProcessKey
from myrmidon.bot.slots.environment_build import PYTHON, Build, BuildCancelled, Builder
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.system.interpreters import Interpreters
from myrmidon.functions import requirements
from tests.deadline import HANG_S


class StepByStep:
    """Builds nothing. The first build begins, is cancelled, and ends when the test lets it end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def build(self, build: Build) -> None:
        if not self.begun.is_set():
            self.begun.set()
            while not build.is_cancelled():
                time.sleep(0.005)
            assert self.may_end.wait(HANG_S)
            raise BuildCancelled
        path = Path(build.folder, PYTHON)
        path.parent.mkdir(parents=True)
        path.touch()


def test_a_run_that_needs_the_environment_of_a_cancelled_build_gets_it(tmp_path: Path):
    builder = StepByStep()
    offer = EnvironmentOffer(EnvironmentCache(str(tmp_path / "environments")), Interpreters())
    environments = Environments(offer, cast("Builder", builder))
    digest, document = requirements.document(requirements.check_lines(["numpy"]))
    key = ProcessKey("", "group", environment=digest)
    ends: dict[str, Problem | None] = {}
    both = threading.Semaphore(0)

    def note(run: str, problem: Problem | None) -> None:
        ends[run] = problem
        both.release()

    environments.request(key, document, lambda problem: note("first", problem))
    assert builder.begun.wait(HANG_S)
    environments.keep([])  # nobody waits for it any more ...
    environments.request(key, document, lambda problem: note("second", problem))  # ... but now somebody does
    builder.may_end.set()
    assert both.acquire(timeout=HANG_S)
    assert both.acquire(timeout=HANG_S)
    assert ends["first"] is not None
    assert ends["second"] is None
    assert os.path.exists(environments.runtime(key).python)
    assert not environments.builds


class Broken:
    """Fails in a way that nobody has foreseen."""

    def build(self, _build: Build) -> None:
        raise ZeroDivisionError("unforeseen")


def test_any_error_while_an_environment_is_built_is_told_to_the_runs_that_wait_for_it(tmp_path: Path):
    offer = EnvironmentOffer(EnvironmentCache(str(tmp_path / "environments")), Interpreters())
    environments = Environments(offer, cast("Builder", Broken()))
    digest, document = requirements.document(requirements.check_lines(["numpy"]))
    problems: list[Problem | None] = []
    told = threading.Event()

    def note(problem: Problem | None) -> None:
        problems.append(problem)
        told.set()

    environments.request(ProcessKey("", "group", environment=digest), document, note)
    assert told.wait(HANG_S)
    [problem] = problems
    assert problem is not None
    assert (problem.kind, "unforeseen" in str(problem)) == ("bot_error", True)
