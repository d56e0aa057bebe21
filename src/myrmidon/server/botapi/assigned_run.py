"""Conversion of claimed runs to what the bot gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import UNSET, UnsetType, json

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.task_request import Properties, is_terminate_task, properties_from_json
from myrmidon.model.value import Value
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.auth.run_tokens import run_token
from myrmidon.server.botapi.messages import AssignedFunction, AssignedInput, AssignedRun, AssignedValue
from myrmidon.server.botapi.rendering import CannotRender, render


def is_terminate(claimed: Claimed) -> bool:
    """Whether this is a terminate task, which has neither a command nor a function and tells the bot to end."""
    return is_terminate_task(claimed.work.func_name, claimed.work.properties)


def assigned_run(
    claimed: Claimed,
    *,
    api_key: bytes,
    group: str | None = None,
    hints: Callable[[Properties], dict[str, int]] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> AssignedRun:
    """Convert a claimed run; ``hints`` is called only for tasks with caches. ``api_key`` makes the tokens of runs.

    ``files`` are the contents of the files that rendering a command needs.
    """
    work = claimed.work
    properties, stdin, problem = properties_from_json(work.properties), claimed.stdin, ""
    if properties.output_refs:
        properties, stdin, problem = _rendered(claimed, properties, files or {})
    function = _function(claimed)
    return AssignedRun(
        run=show_run(claimed.task_id, claimed.run),
        token=claimed.token,
        name=work.name,
        command=properties.command,
        env=properties.env,
        env_prefixes=properties.env_prefixes,
        relative_cwd=properties.relative_cwd,
        payload=properties.payload,
        caches=properties.caches,
        secret_bytes=claimed.secret_bytes,
        stdin=stdin,
        execution_timeout_s=properties.execution_timeout_s,
        io_timeout_s=properties.io_timeout_s,
        grace_period_s=properties.grace_period_s,
        merge_output=properties.merge_output,
        lease_s=work.lease / SECOND,
        deadline_at=work.deadline_at,
        outputs=properties.outputs,
        idempotent=properties.idempotent,
        user=work.user_name,
        priority=work.priority,
        function=function,
        inputs=[_input(value) for value in claimed.inputs] if function else [],
        problem=problem,
        output_types=claimed.output_types,
        label=claimed.label,
        task_id=show_task(claimed.task_id),
        dimensions=properties.dimensions,
        service_account=work.service_account,
        resource_group=group,
        cache_hints=hints(properties) if hints is not None and properties.caches else UNSET,
        api_token=_api_token(api_key, claimed) if properties.api else "",
        job_id=show_task(work.job_id) if (properties.api or function) and work.job_id is not None else "",
        realm=_realm(work.metadata) if work.metadata != "{}" else UNSET,
        terminate=UNSET if properties.command or function else True,
    )


def _rendered(
    claimed: Claimed, properties: Properties, files: Mapping[str, bytes]
) -> tuple[Properties, bytes | None, str]:
    """The properties with the outputs of other tasks that they refer to, the stdin, and why that is not possible."""
    try:
        properties, stdin = render(properties, claimed.inputs, files)
    except CannotRender as problem:
        return properties, None, str(problem)
    return properties, claimed.stdin if stdin is None else stdin, ""


def _function(claimed: Claimed) -> AssignedFunction | None:
    work = claimed.work
    if work.func_name is None:
        return None
    return AssignedFunction(
        package_name=work.package_name or "",
        func_name=work.func_name,
        language=work.language or "PYTHON",
        code=claimed.code,
        signature=work.signature or "",
        memory_mb=work.memory_mb,
        environment=claimed.environment,
    )


def _input(value: Value) -> AssignedInput:
    parts = value.parts
    return AssignedInput(
        type=value.type,
        payload=value.payload or None if parts is not None else value.payload,
        digest=value.digest,
        size=value.size,
        parts=[AssignedValue(type=v.type, payload=v.payload, digest=v.digest, size=v.size) for v in parts]
        if parts is not None
        else None,
    )


def _api_token(key: bytes, claimed: Claimed) -> str:
    """The token of a run for its job; the same for a repeated claim, because it is derived from the claim's nonce."""
    job_id = claimed.work.job_id
    if job_id is None:
        return ""
    return run_token(
        key,
        task_id=claimed.task_id,
        run=claimed.run,
        job_id=job_id,
        group_id=claimed.resource_group_id,
        nonce=claimed.nonce,
    )


def _realm(metadata: str) -> str | UnsetType:
    realm = json.decode(metadata).get("realm")
    return realm if isinstance(realm, str) and realm else UNSET
