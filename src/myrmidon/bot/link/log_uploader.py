"""Uploads logs that are too large for an exchange, from the spool, chunk by chunk.

The log of a finished command is uploaded before its result is reported. A log that the server rejects is discarded.
The session loop decides when to upload the log of a command that still runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from myrmidon.bot.link.http_client import HttpClient, HttpError
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock

CHUNK_BYTES = 1 << 20
MAX_LIVE_CHUNKS = 16
REJECTED = (403, 404, 410)


class LogUploader:
    """Uploads spooled logs over the session's connection. Used by the session thread.

    ``sent_at``: time of the last upload. ``resume_at``: until then the server has asked to pause uploads of running
    commands. ``after_chunk`` is called after each chunk, so that a long log does not delay heartbeats.
    """

    def __init__(
        self,
        http: HttpClient,
        run_queue: RunQueue,
        *,
        journal: ResultJournal,
        spool: LogSpool,
        watcher: CommandWatcher,
        after_chunk: Callable[[], None],
    ) -> None:
        self.http = http
        self.run_queue = run_queue
        self.journal = journal
        self.spool = spool
        self.watcher = watcher
        self.after_chunk = after_chunk
        self.sent_at = 0.0
        self.resume_at = 0.0

    def upload_leftovers(self) -> None:
        """Upload what an earlier process of this bot has left; its results follow from the journal."""
        held_runs = {task["run"] for task in self.run_queue.held()}
        for run in self.spool.runs():
            if run not in held_runs:
                self.upload(run)
                if run not in self.journal.open_runs:
                    self.spool.remove(run)

    def upload_finished(self) -> None:
        """Upload the logs of all finished runs, so that each precedes its result."""
        if self.spool.tokens:
            for run in [record["report"]["run"] for record in list(self.run_queue.finished)]:
                if run in self.spool.tokens:
                    self.upload(run)
                    self.spool.remove(run)

    def upload(self, run: str, max_chunks: int = 1 << 30) -> None:
        """Upload the spooled log of a run in order, at most ``max_chunks`` chunks of each stream.

        A busy server asks for a pause. It is honoured for a running command; the log of a finished one does not wait.
        """
        token = self.spool.tokens.get(run, "")
        for stream in (0, 1):
            for _ in range(max_chunks):
                offset, data = self.spool.read(run, stream, CHUNK_BYTES)
                if not data:
                    break
                try:
                    pause = self._upload_chunk(f"/bot/v1/log/{run}/{stream}?offset={offset}", data, token)
                except HttpError as error:
                    if error.status not in REJECTED:
                        raise
                    self.discard(run)
                    return
                self.spool.remove_delivered(run, stream, offset + len(data))
                self.after_chunk()
                if pause and max_chunks <= MAX_LIVE_CHUNKS:
                    self.resume_at = clock.boottime() + pause
                    break
        self.sent_at = clock.boottime()

    def _upload_chunk(self, path: str, data: bytes, token: str) -> float:
        """Upload one chunk; the seconds that the server asks to wait before the next one."""
        headers = f"X-Run-Token: {token}\r\n"
        answer = self.http.call("POST", path, data, content_type="application/octet-stream", headers=headers)
        return float(json.loads(answer).get("pause_s") or 0.0)

    def discard(self, run: str) -> None:
        """Stop keeping the log of a run, because the server does not accept it."""
        command = self.watcher.current
        if command is not None and command.run == run:
            command.discard_output = True
        self.spool.remove(run)
