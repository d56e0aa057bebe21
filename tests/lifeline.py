"""A database server that crashes by a fault of its own is started again, and what it broke is run once more.

MariaDB has been seen to do so. That says nothing of the code under test, but it is told at the end of the
run, with the server's last words. A death leaves broken connections behind, which tests trip over later too: from then
on each test that fails gets a second chance. In a run without a death none does.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests import servers

VARIABLE = "MYRMIDON_TEST_DEATHS"
PATIENCE_S = 30.0


def watch(server: servers.Server) -> None:
    """Start this server again whenever it ends without having been told to; called in the process that started it."""
    if VARIABLE not in os.environ:
        handle, os.environ[VARIABLE] = tempfile.mkstemp(prefix="myrmidon-deaths-")
        os.close(handle)
    threading.Thread(target=_keep_alive, args=(server,), name=f"lifeline of {server.kind}", daemon=True).start()


def _keep_alive(server: servers.Server) -> None:
    """Two lines for each death: one when it is noticed, one when the server is back."""
    while server.process is not None:
        code = server.process.wait()
        if server.stopped:
            return
        _tell(f"{server.kind} ended with {code}: {server.last_words()}")
        server.start()
        _tell(f"{server.kind} is back")


def _tell(line: str) -> None:
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(line.replace("\n", " | ") + "\n")


def deaths() -> list[str]:
    """What was told so far."""
    name = os.environ.get(VARIABLE)
    return Path(name).read_text().splitlines() if name and Path(name).exists() else []


def forget() -> None:
    if name := os.environ.pop(VARIABLE, None):
        Path(name).unlink(missing_ok=True)


class Again:
    """Runs a test that has failed once more if a server has died."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if any(report.failed for report in reports) and _any_death():
            item._initrequest()  # type: ignore[attr-defined]
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def _any_death() -> bool:
    """Whether a server has died in this run; if so, wait until it is back."""
    end = time.monotonic() + PATIENCE_S
    time.sleep(0.2)  # the end of a process is noticed a moment later by the one that started it
    while len(deaths()) % 2 and time.monotonic() < end:
        time.sleep(0.1)
    return bool(deaths())
