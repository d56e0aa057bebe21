"""The files of runs: code and large inputs before a run, large outputs after it.

Everything that takes time is done by transfer threads. They leave what is done in ``fetched`` and ``stored``, and wake
the thread that runs functions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from base64 import b64encode
from collections import deque
from collections.abc import Collection
from typing import Any, Callable, Dict, Optional, Protocol, Tuple

from myrmidon.bot.run.run_log import RunLog, TransferFailed
from myrmidon.bot.slots.code_store import CodeStore
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.slots.function_run import FunctionRun
from myrmidon.bot.slots.problems import Problem, problem_of
from myrmidon.bot.slots.run_frames import digests_of
from myrmidon.bot.slots.value_cache import ValueCache, digest_of, name_of
from myrmidon.executor.code_archive import BadCode
from myrmidon.functions.values import MAX_BYTES, too_large

_FILES = "the bot could not store the files of the function"

log = logging.getLogger("myrmidon.bot")


class ResultTooLarge(Exception):
    """An output is larger than any value may be."""


class Transfers(Protocol):
    """What exchanges files with the server."""

    def submit(self, job: Callable[[], None]) -> None:
        """Call a function in another thread."""

    def fetch(self, run: RunLog, digest: str) -> bytes:
        """A file of a run. Raises TransferFailed."""

    def store(self, run: RunLog, digest: str, data: bytes) -> None:
        """Store a file of a run. Raises TransferFailed."""


Fetched = Tuple[FunctionRun, Optional[Problem]]
Stored = Tuple[FunctionRun, Dict[str, Any], Optional[Problem]]
OpenOutput = Tuple[str, Optional[bytes], int]
"""Type, and either the bytes or the open file of an output."""


class RunFiles:
    """Used by the thread that runs functions. ``used_code``: the code that processes use now."""

    def __init__(self, shared: str, transfers: Transfers, environments: Environments, wake: Callable[[], None]) -> None:
        self.codes = CodeStore(os.path.join(shared, "code"))
        self.values = ValueCache(os.path.join(shared, "values"))
        self.transfers = transfers
        self.environments = environments
        self.wake = wake
        self.fetched: deque[Fetched] = deque()
        self.stored: deque[Stored] = deque()
        self.used_code: Callable[[], Collection[str]] = tuple

    # ---------------------------------------------------------------- before a run

    def prepare(self, run: FunctionRun) -> bool:
        """Pin the large inputs of a run; whether its files and its environment are here. If not, they are fetched."""
        run.digests = digests_of(run.task)
        names = self._names(run)
        if names:
            self.values.pin(names)
        has_files = self.codes.has(run.key.code) and not (names and self.values.missing(names))
        if has_files and self.environments.is_ready(run.key):
            return True
        used = self.used_code()
        self.transfers.submit(lambda: self._fetch(run, used))
        return False

    def release(self, run: FunctionRun) -> None:
        """The inputs of a run are no longer needed."""
        if run.digests:
            self.values.release(self._names(run))
            run.digests = frozenset()

    @staticmethod
    def _names(run: FunctionRun) -> list[str]:
        return [name_of(run.key.group, digest) for digest in run.digests]

    def _fetch(self, run: FunctionRun, used: Collection[str]) -> None:
        try:
            code = run.key.code
            if not self.codes.has(code):
                self.codes.add(code, self.transfers.fetch(run, code), used)
            for digest in run.digests:
                if self.values.missing([name_of(run.key.group, digest)]):
                    self.values.add(run.key.group, digest, self._verified(run, digest))
            problem = None
            if not self.environments.is_ready(run.key):
                document = self._verified(run, run.key.environment)
                self.environments.request(run.key, document, lambda problem: self._add_fetched(run, problem))
                return
        except BadCode as error:
            problem = Problem("", f"the code of the function cannot be used: {error}")
        except TransferFailed as error:
            kind = "client_error" if error.is_permanent else "bot_error"
            problem = Problem(kind, f"the code or the inputs of the function cannot be fetched: {error}")
        except OSError as error:
            problem = problem_of(error, _FILES)
        except Exception as error:
            log.exception("the files of %s could not be fetched", run.run)
            problem = Problem("bot_error", f"the bot failed to fetch the code or the inputs of the function: {error!r}")
        self._add_fetched(run, problem)

    def _add_fetched(self, run: FunctionRun, problem: Problem | None) -> None:
        self.fetched.append((run, problem))
        self.wake()

    def _verified(self, run: FunctionRun, digest: str) -> bytes:
        data = self.transfers.fetch(run, digest)
        if digest_of(data) != digest:
            raise TransferFailed(f"the file {digest} was damaged on its way")
        return data

    # ---------------------------------------------------------------- after a run

    def open_outputs(self, answer: dict[str, Any], run: FunctionRun, folder: str) -> list[OpenOutput]:
        """The outputs of an answer, large ones as open files: those of a process vanish with it.

        The paths are made here: a process could name any file that the bot may read. Raises ValueError or OSError.
        """
        outputs: list[OpenOutput] = []
        try:
            for position, output in enumerate(answer["outputs"]):
                kind = str(output["type"])
                if "data" in output:
                    outputs.append((kind, bytes(output["data"]), -1))
                    continue
                outputs.append((kind, None, _open_output(os.path.join(folder, f"{run.id}-{position}"))))
        except BaseException:
            _close(outputs)
            raise
        return outputs

    def store(self, run: FunctionRun, record: dict[str, Any], outputs: list[OpenOutput]) -> None:
        """Store large outputs at the server, and complete the record."""
        self.transfers.submit(lambda: self._store(run, record, outputs))

    def _store(self, run: FunctionRun, record: dict[str, Any], outputs: list[OpenOutput]) -> None:
        problem = None
        try:
            record["report"]["outputs"] = [self._payload(run, *output) for output in outputs]
        except TransferFailed as error:
            kind = "" if error.is_permanent else "upload_failed"  # another bot could not store it either
            problem = Problem(kind, f"the result could not be stored: {error}")
        except OSError as error:
            problem = problem_of(error, _FILES)
        except ResultTooLarge as error:
            problem = Problem("", str(error))
        except Exception as error:
            log.exception("the results of %s could not be stored", run.run)
            problem = Problem("bot_error", f"the bot failed to store the result: {error!r}")
        finally:
            _close(outputs)
        self.stored.append((run, record, problem))
        self.wake()

    def _payload(self, run: FunctionRun, kind: str, data: bytes | None, file: int) -> dict[str, Any]:
        if data is not None:
            return inline_output(kind, data)
        size = os.fstat(file).st_size
        if size > MAX_BYTES:
            raise ResultTooLarge(too_large("the result", size))
        with os.fdopen(os.dup(file), "rb") as source:
            content = source.read(MAX_BYTES)
        digest = digest_of(content)
        self.values.add(run.key.group, digest, content)
        self.transfers.store(run, digest, content)
        return {"type": kind, "payload": {"digest": digest, "size": len(content)}}


def _open_output(path: str) -> int:
    """Open the file of an output, and remove its name. Raises ValueError or OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        os.unlink(path)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("an output is not a file")
        stack.pop_all()
    return file


def _close(outputs: list[OpenOutput]) -> None:
    for _, _, file in outputs:
        if file >= 0:
            os.close(file)


def inline_output(kind: str, data: bytes) -> dict[str, Any]:
    """A small output as it is reported."""
    return {"type": kind, "payload": {"inline": b64encode(data).decode()}}
