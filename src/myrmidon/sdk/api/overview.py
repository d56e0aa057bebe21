"""Calls that show what happens and what has happened: the overview, histories, searches, and the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from myrmidon.sdk.api.caller import API, Caller, decode, segment
from myrmidon.sdk.transport import Event, new_key
from myrmidon.wire.function_stats import FunctionInfo, FunctionList
from myrmidon.wire.job_history import FlakyLabels, JobFailures, JobNames, Timeline
from myrmidon.wire.load import BotSeries, PoolLoads
from myrmidon.wire.logs import LogTimes
from myrmidon.wire.overview import BotCounts, Overview
from myrmidon.wire.search import SearchResult
from myrmidon.wire.session import LINK_S, LinkInfo, SessionInfo
from myrmidon.wire.task_selection import BatchDone, TaskCounts


class OverviewCalls(Caller):
    def overview(self, window: str = "1h") -> Overview:
        """Bots by status, the deepest queues, charts of the last ``1h``, ``24h`` or ``7d``, what is stuck, my work."""
        return self.call("GET", "overview", Overview, query={"window": window})

    def search(self, text: str, *, limit: int = 8) -> SearchResult:
        """Tasks and jobs by id or name, bots by id, and tags."""
        return self.call("GET", "search", SearchResult, query={"q": text, "limit": limit})

    def changes(self, topics: Sequence[str], *, after: str | None = None) -> Iterator[Event]:
        """What has changed, by topics such as ``tasks`` or ``job:ID``: at most two frames a second, without end."""
        return self.transport.stream(f"{API}/stream", after=after, query={"topic": list(topics)})

    def count_tasks(self, **filters: Any) -> TaskCounts:
        """The number of tasks by state. Filters as for ``tasks``."""
        return self.call("GET", "tasks/counts", TaskCounts, query=filters)

    def change_tasks(
        self, action: str, task_ids: Sequence[str], *, dry_run: bool = False, key: str | None = None, **options: bool
    ) -> BatchDone:
        """``cancel`` or ``rerun`` up to 1,000 tasks. Options: kill_running, force."""
        body = {"action": action, "task_ids": list(task_ids), "dry_run": dry_run, **options}
        return self._post("tasks/batch", BatchDone, body, key)

    def log_times(self, task_id: str, *, run: int | None = None, after: int = 0) -> LogTimes:
        """One page of when the output of a run was written."""
        return self.call("GET", f"tasks/{segment(task_id)}/log/times", LogTimes, query={"run": run, "after": after})

    def job_names(self, *, limit: int = 100) -> JobNames:
        """The names of jobs, each with its last runs."""
        return self.call("GET", "job-names", JobNames, query={"limit": limit})

    def flaky_labels(self, name: str) -> FlakyLabels:
        """Labels that have failed in the last jobs of a name."""
        return self.call("GET", "job-names/flaky", FlakyLabels, query={"name": name})

    def timeline(self, job_id: str, **page: Any) -> Timeline:
        """When the tasks of a job waited and ran, and the critical path."""
        return self.call("GET", f"jobs/{segment(job_id)}/timeline", Timeline, query=page)

    def job_failures(self, job_id: str) -> JobFailures:
        """The failures of a job in groups."""
        return self.call("GET", f"jobs/{segment(job_id)}/failures", JobFailures)

    def functions(self) -> FunctionList:
        """Functions that recent tasks have run, with durations and failures."""
        return self.call("GET", "functions", FunctionList)

    def function(self, name: str) -> FunctionInfo:
        """One function ``package:name`` with its failures and newest tasks."""
        return self.call("GET", f"functions/{segment(name)}", FunctionInfo)

    def bot_counts(self) -> BotCounts:
        """Numbers of bots by status and release."""
        return self.call("GET", "bots/counts", BotCounts)

    def bot_series(self, bot_id: str, window: str = "1h") -> BotSeries:
        """How busy a bot was, and how its runs ended."""
        return self.call("GET", f"bots/{segment(bot_id)}/series", BotSeries, query={"window": window})

    def pool_loads(self) -> PoolLoads:
        """What waits in each pool, and how long."""
        return self.call("GET", "pools/load", PoolLoads)


class SessionCalls(Caller):
    def session(self) -> SessionInfo:
        """Who the caller is."""
        return self.call("GET", "session", SessionInfo)

    def login_link(self, to: str = "/", *, lifetime_s: int = LINK_S, key: str | None = None) -> LinkInfo:
        """Create a link that logs in a browser once, with the rights of this client's token.

        ``path`` of the answer is to be appended to the URL of the server.
        """
        body = {"to": to, "lifetime_s": lifetime_s}
        return decode(self.transport.call("POST", "/auth/links", body=body, key=key or new_key()).data, LinkInfo)
