"""Calls of the server for the job of a run, with the token of the run. All may be repeated."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from secrets import token_hex
from typing import Any, Mapping, Sequence
from urllib.parse import quote

from myrmidon.bot.link.http_client import HttpClient, HttpError
from myrmidon.functions.values import INLINE_BYTES

MAX_FILES = 1_000
"""How many files one call may ask for."""


class CallRefused(RuntimeError):
    """The server has refused what a run asked for its job."""


class JobCalls:
    """The job of one run."""

    def __init__(self, server: str, token: str, job_id: str) -> None:
        self._client = HttpClient(server, token)
        self._client.margin_s = 60.0
        self._job_id = job_id

    def extend(self, document: str) -> None:
        """Add the tasks of a document, which is JSON."""
        self._call("POST", f"/api/v1/jobs/{quote(self._job_id, safe='')}/extend", f'{{"job":{document}}}'.encode())

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Store values by their digests, those that the server does not have yet."""
        digests = list(files)
        for start in range(0, len(digests), MAX_FILES):
            asked = [{"digest": one, "size": len(files[one])} for one in digests[start : start + MAX_FILES]]
            missing = self._call("POST", "/api/v1/files/missing", json.dumps({"files": asked}).encode())["missing"]
            for digest in missing:
                self._call("PUT", f"/api/v1/files/{digest}", files[digest], "application/octet-stream")

    def share(self, type_string: str, data: bytes, localities: Sequence[str]) -> str:
        """Create a shared value that the job references; its id."""
        payload: dict[str, Any] = {"inline": b64encode(data).decode()}
        if len(data) > INLINE_BYTES:
            digest = sha256(data).hexdigest()
            self.upload({digest: data})
            payload = {"digest": digest, "size": len(data)}
        body = {"type": type_string, "payload": payload, "localities": list(localities)}
        # A key for all attempts of this call: a lost answer must not leave a second value behind.
        made = self._call("POST", "/api/v1/values", json.dumps(body).encode(), key=token_hex(16))
        return str(made["id"])

    def _call(
        self, method: str, path: str, body: bytes, content_type: str = "application/json", *, key: str = ""
    ) -> Any:
        """The JSON response of a call, which is repeated while the server is away; with a key it takes effect once."""
        headers = f"Idempotency-Key: {key}\r\n" if key else ""
        try:
            return self._client.call_until_answered(method, path, body, content_type=content_type, headers=headers)
        except HttpError as error:
            raise CallRefused(f"the server has refused what the task asked for its job: {error}") from None


def calls_of(frame: Mapping[str, Any]) -> JobCalls:
    """The calls for the job of a run. Raises CallRefused if the run has no token for it."""
    if not frame.get("token") or not frame.get("job_id"):
        raise CallRefused(
            "this task may not extend its job or share values. A function with cache=... may not, because an equal "
            "earlier result may answer it without a run: remove cache, or call it with .options(cache=False). A task "
            "of a graph document needs api: job"
        )
    return JobCalls(frame["server"], frame["token"], frame["job_id"])
