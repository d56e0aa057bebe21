"""Tokens of runs: a task with ``api: "job"`` may read and extend its own job while it runs.

A token names the task and the run, and has an HMAC over them, the job, the resource group and the nonce of the claim.
Nothing is stored for it: it is valid while that run is RUNNING, so it ends with the run, and a run of the same number
under another claim has another one.
"""

from __future__ import annotations

import hmac
import re

from myrmidon.model.keyed_hash import keyed_hash
from myrmidon.model.validation import MAX_INT64
from myrmidon.server.calls import Identity, Role
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import run_details

PREFIX = "myu_"
RUN_TOKEN = re.compile(r"myu_([0-9a-f]{1,16})_([0-9]{1,3})_([0-9a-f]{64})")
CACHE_S = 2
"""The time for which a token is remembered as valid, and so may be used after the end of its run."""


def run_token(key: bytes, *, task_id: int, run: int, job_id: int, group_id: int, nonce: int) -> str:
    """The token of a run."""
    content = f"run\n{task_id}\n{run}\n{job_id}\n{group_id}\n{nonce}"
    return f"{PREFIX}{task_id:x}_{run}_{keyed_hash(key, content.encode())}"


def read_run_token(tx: Tx, key: bytes, text: str) -> Identity | None:
    """The caller with this token: the submitter of the task, bound to its job; None if the token is not valid."""
    match = RUN_TOKEN.fullmatch(text)
    if match is None or (task_id := int(match[1], 16)) > MAX_INT64:
        return None
    run = run_details.running(tx, task_id, int(match[2]))
    if run is None or run.job_id is None:
        return None
    expected = run_token(
        key, task_id=task_id, run=run.run, job_id=run.job_id, group_id=run.resource_group_id, nonce=run.nonce
    )
    if not hmac.compare_digest(expected, text):
        return None
    return Identity(
        run.authenticated,
        Role.RUN,
        run.group,
        group_id=run.resource_group_id,
        job_id=run.job_id,
        task_id=task_id,
        run=run.run,
    )
