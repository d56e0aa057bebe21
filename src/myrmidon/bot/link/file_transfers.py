"""Fetches and stores the files of runs: code, large inputs, large outputs. Over connections and threads of its own.

So a large file delays neither the session nor functions that need none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from myrmidon.bot.link.http_client import HttpClient, HttpError, NoResponse, retry_delay
from myrmidon.bot.run.reports import TransferFailed
from myrmidon.bot.run.run import Run

THREADS = 2
FETCH_S = 60.0  # how long a file is tried to fetch while the server fails
STORE_S = 600.0  # the same for results, which would be lost
_CALL_S = 60.0

log = logging.getLogger("myrmidon.bot")


class FileTransfers:
    """Threads start with the first transfer. ``bearer`` is the bot's credential, ``headers`` those of hooks."""

    def __init__(self, server: str, bearer: Callable[[], str], headers: Callable[[], str]) -> None:
        self.server = server
        self.bearer = bearer
        self.headers = headers
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.local = threading.local()

    def submit(self, job: Callable[[], None]) -> None:
        """Call a function in one of the threads. Used by one thread."""
        if len(self.threads) < THREADS:
            thread = threading.Thread(target=self._work, name="transfer", daemon=True)
            self.threads.append(thread)
            thread.start()
        self.jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            try:
                job()
            except Exception:
                log.exception("a transfer failed")

    def fetch(self, run: Run, digest: str) -> bytes:
        """A file of a run. Raises TransferFailed."""
        return self._call("GET", run, digest, b"", FETCH_S)

    def store(self, run: Run, digest: str, data: bytes) -> None:
        """Store a file of a run. Raises TransferFailed."""
        self._call("PUT", run, digest, data, STORE_S)

    def _call(self, method: str, run: Run, digest: str, data: bytes, limit_s: float) -> bytes:
        path = f"/bot/v1/runs/{run.id}/files/{digest}"
        headers = f"X-Run-Token: {run.token}\r\n"
        until = time.monotonic() + limit_s
        failures = 0
        while True:
            http = self._connection()
            try:
                return http.call(method, path, data, content_type="application/octet-stream", headers=headers)
            except HttpError as error:
                if not error.is_transient and error.status != 401:
                    raise TransferFailed(str(error), is_permanent=error.status in (400, 410, 413)) from error
                failure: Exception = error
                retry_after = error.retry_after
            except NoResponse as error:
                failure, retry_after = error, None
            if run.end_request is not None:
                raise TransferFailed(f"the run is to end: {failure}") from failure
            failures += 1
            delay_s = retry_delay(failures, retry_after)
            if time.monotonic() + delay_s > until:
                raise TransferFailed(f"no success for {limit_s:.0f} s: {failure}") from failure
            time.sleep(delay_s)

    def _connection(self) -> HttpClient:
        """The connection of this thread, with the present credential."""
        http: HttpClient | None = getattr(self.local, "http", None)
        if http is None:
            http = self.local.http = HttpClient(self.server)
            http.margin_s = _CALL_S
        if http.bearer != self.bearer():
            http.bearer = self.bearer()
        http.set_extra_headers(self.headers())
        return http
