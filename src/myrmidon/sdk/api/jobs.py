"""Calls about jobs. Those about one job are methods of its handle, ``Job`` in sdk/jobs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myrmidon.functions.argument_checks import mapping
from myrmidon.sdk.api.caller import Caller
from myrmidon.wire import jobs as wire


class JobCalls(Caller):
    def submit_jobs(
        self, documents: Sequence[Mapping[str, Any]], *, group: str | None = None, key: str | None = None
    ) -> wire.JobsSubmitted:
        """Submit several graph documents in one transaction: all are stored, or none.

        They may have up to 1,000 tasks together.
        """
        return self._post("jobs/batch", wire.JobsSubmitted, {"jobs": list(documents), "group": group}, key)

    def check_job(
        self,
        document: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        group: str | None = None,
        resume: bool = False,
    ) -> wire.JobCheck:
        """Validate a graph document and match it with the fleet; nothing is stored."""
        body = job_body(document, parameters, group, resume=resume)
        return self.call("POST", "jobs/check", wire.JobCheck, body=body)

    def jobs(self, **filters: Any) -> wire.JobList:
        """One page of jobs. Filters: state, name, tag, group, start, end, mine, limit, cursor."""
        return self.call("GET", "jobs", wire.JobList, query=filters)


def job_body(
    document: Mapping[str, Any], parameters: Mapping[str, Any] | None, group: str | None, *, resume: bool
) -> dict[str, Any]:
    """The body of the calls that submit or check a graph document."""
    mapping("the document", document, "{'name': 'build', 'tasks': {...}}, for example what json.load returns")
    given = dict(mapping("parameters", parameters or {}, "{'arch': 'arm64'}"))
    body = {"job": document, "parameters": given, "group": group}
    return {**body, "resume": True} if resume else body  # a server of the previous release does not know the field
