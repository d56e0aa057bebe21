"""The files of runs: code and large inputs before a run, large outputs after it.

Everything that takes time is done by transfer threads. They leave what they have done in ``done``, and wake the thread
that runs functions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections import deque
from collections.abc import Collection
from typing import Any, Callable, NamedTuple, Optional, Protocol, Tuple

from myrmidon.bot.protocol import Output, Payload, Record
from myrmidon.bot.run import reports
from myrmidon.bot.run.reports import Problem, TransferFailed, problem_of
from myrmidon.bot.run.run import Run
from myrmidon.bot.slots.code_store import CodeStore
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.slots.run_frames import digests_of
from myrmidon.bot.slots.value_cache import ValueCache, digest_of, name_of
from myrmidon.executor.code_archive import BadCode
from myrmidon.functions.values import MAX_BYTES, too_large

log = logging.getLogger("myrmidon.bot")


class ResultTooLarge(Exception):
    """An output is larger than any value may be."""


class Transfers(Protocol):
    """What exchanges files with the server."""

    def submit(self, job: Callable[[], None]) -> None:
        """Call a function in another thread."""

    def fetch(self, run: Run, digest: str) -> bytes:
        """A file of a run. Raises TransferFailed."""

    def store(self, run: Run, digest: str, data: bytes) -> None:
        """Store a file of a run. Raises TransferFailed."""


OpenOutput = Tuple[str, Optional[bytes], int]
"""Type, and either the bytes or the open file of an output."""


class Done(NamedTuple):
    """The files of a run were fetched, or its results stored, then with its ``record``; or a problem says why not."""

    run: Run
    problem: Problem | None = None
    record: Record | None = None


class RunFiles:
    """Used by the thread that runs functions. ``wake`` wakes it."""

    def __init__(self, shared: str, transfers: Transfers, environments: Environments) -> None:
        self.codes = CodeStore(os.path.join(shared, "code"))
        self.values = ValueCache(os.path.join(shared, "values"))
        self.transfers = transfers
        self.environments = environments
        self.wake: Callable[[], None] = lambda: None
        self.done: deque[Done] = deque()

    # ---------------------------------------------------------------- before a run

    def prepare(self, run: Run, used_code: Collection[str]) -> bool:
        """Pin the large inputs of a run; whether its files and its environment are here. If not, they are fetched.

        ``used_code``: the code that is kept, because processes or other runs use it.
        """
        run.digests = digests_of(run.task)
        names = self._names(run)
        if names:
            self.values.pin(names)
        has_files = self.codes.has(run.key.code) and not (names and self.values.missing(names))
        if has_files and self.environments.is_ready(run.key):
            return True
        self.transfers.submit(lambda: self._fetch(run, used_code))
        return False

    def release(self, run: Run) -> None:
        """The inputs of a run are no longer needed."""
        if run.digests:
            self.values.release(self._names(run))
            run.digests = frozenset()

    @staticmethod
    def _names(run: Run) -> list[str]:
        return [name_of(run.key.group, digest) for digest in run.digests]

    def _fetch(self, run: Run, used: Collection[str]) -> None:
        problem = None
        try:
            code = run.key.code
            if not self.codes.has(code):
                self.codes.add(code, self.transfers.fetch(run, code), used)
            for digest in run.digests:
                if self.values.missing([name_of(run.key.group, digest)]):
                    self.values.add(run.key.group, digest, self._verified(run, digest))
            if not self.environments.is_ready(run.key):
                document = self._verified(run, run.key.environment)
                self.environments.request(run.key, document, lambda problem: self._add(Done(run, problem)))
                return
        except BadCode as error:
            problem = Problem("", f"the code of the function cannot be used: {error}")
        except TransferFailed as error:
            kind = "client_error" if error.is_permanent else "bot_error"
            problem = Problem(kind, f"the code or the inputs of the function cannot be fetched: {error}")
        except Exception as error:
            log.exception("the files of %s could not be fetched", run.id)
            problem = problem_of(error, "the bot could not get the code or the inputs of the function")
        self._add(Done(run, problem))

    def _add(self, done: Done) -> None:
        self.done.append(done)
        self.wake()

    def _verified(self, run: Run, digest: str) -> bytes:
        data = self.transfers.fetch(run, digest)
        if digest_of(data) != digest:
            raise TransferFailed(f"the file {digest} was damaged on its way")
        return data

    # ---------------------------------------------------------------- after a run

    def open_outputs(self, answer: dict[str, Any], run: Run, folder: str) -> list[OpenOutput]:
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
                outputs.append((kind, None, _open_output(os.path.join(folder, f"{run.number}-{position}"))))
        except BaseException:
            _close(outputs)
            raise
        return outputs

    def store(self, run: Run, record: Record, outputs: list[OpenOutput]) -> None:
        """Store large outputs at the server, and complete the record."""
        self.transfers.submit(lambda: self._store(run, record, outputs))

    def _store(self, run: Run, record: Record, outputs: list[OpenOutput]) -> None:
        problem = None
        try:
            stored = [Output(kind, self._payload(run, data, file)) for kind, data, file in outputs]
            record = reports.with_fields(record, outputs=stored)
        except TransferFailed as error:
            kind = "" if error.is_permanent else "upload_failed"  # another bot could not store it either
            problem = Problem(kind, f"the result could not be stored: {error}")
        except ResultTooLarge as error:
            problem = Problem("", str(error))
        except Exception as error:
            log.exception("the results of %s could not be stored", run.id)
            problem = problem_of(error, "the bot could not store the result of the function")
        finally:
            _close(outputs)
        self._add(Done(run, problem, record))

    def _payload(self, run: Run, data: bytes | None, file: int) -> Payload:
        if data is not None:
            return Payload(data)
        size = os.fstat(file).st_size
        if size > MAX_BYTES:
            raise ResultTooLarge(too_large("the result", size))
        with os.fdopen(os.dup(file), "rb") as source:
            content = source.read(MAX_BYTES)
        digest = digest_of(content)
        self.values.add(run.key.group, digest, content)
        self.transfers.store(run, digest, content)
        return Payload(digest=digest, size=len(content))


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
