"""Applies the policy of a pool to a raw request: who may submit, with which priority, and what is added to the task.

All APIs call ``apply_pool_policy`` once per request, before validation: parts of the request that are malformed are
left for validation to report. The caller's permission is checked first, so that a rejected caller learns nothing about
the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myrmidon.model.errors import Forbidden, InvalidRequest, Problem
from myrmidon.server.calls import Identity, Role
from myrmidon.server.config.pools import CHANCE_SCALE, PoolPolicy, Template, paths_overlap
from myrmidon.server.context import ServerContext
from myrmidon.store.views.pool_filter import PoolFilter

RESERVED_PRIORITY = 20
"""Lower priorities run before everybody else's work; reserved for administrators and for ``urgent`` callers."""
AUTO, CANARY_PREFER, CANARY_NEVER, SKIP = "AUTO", "CANARY_PREFER", "CANARY_NEVER", "SKIP"
_NO_POOL = PoolPolicy(name="")
ISOLATION = "isolation"
"""The dimension in which bots report how they keep tasks away from their own files: landlock, user or none."""
ISOLATED = "landlock|user"


def apply_pool_policy(
    context: ServerContext,
    who: Identity,
    raw: Any,
    *,
    group: str | None = None,
    clamp: bool = False,
    template: str = AUTO,
) -> tuple[Any, list[str]]:
    """The request with the policy of its pool applied, and notes for the caller; ``raw`` itself is not modified.

    A priority that the caller may not use is Forbidden; with ``clamp`` it is changed, with a note.
    """
    pools = context.state.config.pools
    pool = pool_of(raw)
    group = group or who.group or context.settings.default_group
    policy = pools.policies.get(pool) if pool is not None else _NO_POOL
    if policy is None:
        if pools.closed and who.role is not Role.ADMIN:
            raise _no_such_pool(pool)
        policy = _NO_POOL
    if policy.name:
        _check_submitter(policy, who, group)
    raw, notes = _with_priority(policy, who, raw, group=group, clamp=clamp)
    if pool is not None and (policy.require_isolation or group in pools.isolated_groups):
        raw = {**raw, "slices": [_with_isolation(task_slice) for task_slice in raw["slices"]]}
    if not policy.name:
        return raw, notes
    kind, chosen = choose_template(policy, template, chance=context.random_int(CHANCE_SCALE))
    tags = [f"swarming.pool.template:{kind}", f"swarming.pool.version:{pools.version}"]
    return _with_policy(policy, raw, chosen, tags), notes


def pool_of(raw: Any) -> str | None:
    """The pool of a request; None if the request is malformed, so that validation rejects it."""
    try:
        pool = raw["slices"][0]["properties"]["dimensions"]["pool"][0]
    except (TypeError, KeyError, IndexError):
        return None
    return pool if type(pool) is str else None


def _no_such_pool(pool: str | None) -> Forbidden:
    """One message for both cases, so that callers cannot find out which pools exist."""
    return Forbidden(
        f"Pool {str(pool)[:100]!r} does not exist, or this token may not submit to it;"
        " `myrmidon pools` lists those that it may use."
    )


def _check_submitter(policy: PoolPolicy, who: Identity, group: str) -> None:
    if who.role is not Role.ADMIN and not _may_submit(policy, who.role, group):
        raise _no_such_pool(policy.name)


def _may_submit(policy: PoolPolicy, role: Role, group: str) -> bool:
    role = Role.USER if role is Role.RUN else role  # a run may do what a user of its group may
    if policy.roles is not None and role not in policy.roles:
        return False
    return policy.groups is None or group in policy.groups


def visible_pools(context: ServerContext, who: Identity) -> PoolFilter | None:
    """The pools that a caller may see, with their bots: those that its resource group may submit to; None for all.

    A viewer sees what a user of its group sees.
    """
    if who.group is None:
        return None
    pools, group = context.state.config.pools, who.group
    role = Role.USER if who.role is Role.VIEWER else who.role
    usable = frozenset(name for name, policy in pools.policies.items() if _may_submit(policy, role, group))
    if pools.closed:
        return PoolFilter(usable)
    hidden = pools.policies.keys() - usable
    return PoolFilter(frozenset(hidden), excluded=True) if hidden else None


def may_be_urgent(policy: PoolPolicy, who: Identity, group: str) -> bool:
    """Whether the caller may use reserved priorities: administrators, and ``urgent`` token names and groups.

    A run may not, although it has the name of its submitter: a task must not make its own work more urgent.
    """
    if who.role is Role.RUN:
        return False
    return who.role is Role.ADMIN or who.name in policy.urgent or group in policy.urgent


def _with_priority(policy: PoolPolicy, who: Identity, raw: Any, *, group: str, clamp: bool) -> tuple[Any, list[str]]:
    priority = raw.get("priority") if type(raw) is dict else None
    if type(priority) is not int or not 0 <= priority < RESERVED_PRIORITY or may_be_urgent(policy, who, group):
        return raw, []
    if not clamp:
        raise _reserved()
    note = f"The priority was changed from {priority} to {RESERVED_PRIORITY}: lower values are reserved."
    return {**raw, "priority": RESERVED_PRIORITY}, [note]


def _with_isolation(task_slice: Any) -> Any:
    """A slice that only isolated bots match. What it requires itself stays: all values of a dimension must match."""
    properties = task_slice.get("properties") if type(task_slice) is dict else None
    dimensions = properties.get("dimensions") if type(properties) is dict else None
    if not isinstance(properties, dict) or not isinstance(dimensions, dict):
        return task_slice
    required = dimensions.get(ISOLATION, [])
    if not isinstance(required, list) or any(_is_isolated(value) for value in required):
        return task_slice
    changed = {**dimensions, ISOLATION: [*required, ISOLATED]}
    return {**task_slice, "properties": {**properties, "dimensions": changed}}


def _is_isolated(value: object) -> bool:
    """Whether bots without isolation do not match this value of the dimension."""
    return isinstance(value, str) and set(value.split("|")) <= set(ISOLATED.split("|"))


def _reserved() -> Forbidden:
    return Forbidden(
        f"Priorities below {RESERVED_PRIORITY} are reserved for administrators"
        f" and for callers listed as urgent in pools.toml; use {RESERVED_PRIORITY} or more."
    )


def check_priority(context: ServerContext, who: Identity, priority: int, *, pools: Sequence[str], group: str) -> None:
    """Forbidden unless the caller might submit tasks with this priority to all of these pools."""
    policies = context.state.config.pools.policies
    for pool in pools:
        if priority < RESERVED_PRIORITY and not may_be_urgent(policies.get(pool, _NO_POOL), who, group):
            raise _reserved()


# ---------------------------------------------------------------- templates


def _with_policy(policy: PoolPolicy, raw: Any, template: Template | None, new_tags: list[str]) -> Any:
    tags = raw.get("tags")
    problems: list[Problem] = []
    slices = [
        _with_template(_with_expiration(task_slice, policy.default_expiration_s), template, index, problems)
        for index, task_slice in enumerate(raw["slices"])
    ]
    if problems:
        raise InvalidRequest(problems)
    retries = {"retries": policy.default_retries} if raw.get("retries") is None else {}
    return {
        **raw,
        **retries,
        "slices": slices,
        "tags": [*tags, *new_tags] if isinstance(tags, list) else new_tags if tags is None else tags,
    }


def choose_template(policy: PoolPolicy, preference: str, *, chance: int) -> tuple[str, Template | None]:
    """The template of a task, and its kind for the task's tags; ``chance`` is a random number from 0 to 9,999."""
    if preference == SKIP:
        return "skip", None
    canary = policy.canary is not None and preference != CANARY_NEVER
    if canary and (preference == CANARY_PREFER or chance < policy.canary_chance):
        return "canary", policy.canary
    return ("prod", policy.template) if policy.template is not None else ("none", None)


def _with_expiration(task_slice: Any, default_s: int | None) -> Any:
    if default_s is None or type(task_slice) is not dict or task_slice.get("expiration_s") is not None:
        return task_slice
    return {**task_slice, "expiration_s": default_s}


def _with_template(task_slice: Any, template: Template | None, index: int, problems: list[Problem]) -> Any:
    properties = task_slice.get("properties") if type(task_slice) is dict else None
    if template is None or type(properties) is not dict:
        return task_slice
    where = f"slices[{index}].properties"
    env, caches = properties.get("env") or {}, properties.get("caches") or []
    if not isinstance(env, dict) or not isinstance(caches, list):
        return task_slice
    changed = {
        **properties,
        "env": _merge_env(env, template, where, problems),
        "caches": _merge_caches(caches, template, where, problems),
    }
    return {**task_slice, "properties": changed}


def _merge_env(env: Mapping[Any, Any], template: Template, where: str, problems: list[Problem]) -> dict[Any, Any]:
    merged = dict(env)
    for key, variable in template.env.items():
        if key not in env:
            merged[key] = variable.value
        elif not variable.soft:
            allowed = "no value, because the pool's template sets this variable"
            problems.append(Problem(f"{where}.env.{key}", "a value", allowed, "template"))
    return merged


def _merge_caches(caches: list[Any], template: Template, where: str, problems: list[Problem]) -> list[Any]:
    """The caches of a slice and those of the template; names and folders of the two must not overlap."""
    for index, cache in enumerate(caches):
        name, path = (cache.get("name"), cache.get("path")) if isinstance(cache, dict) else (None, None)
        for other in template.caches:
            if name == other.name:
                allowed = "a name that the pool's template does not use"
                problems.append(Problem(f"{where}.caches[{index}].name", str(name), allowed, "template"))
            elif isinstance(path, str) and paths_overlap(path, other.path):
                allowed = f"a path outside of {other.path}, which the pool's template uses"
                problems.append(Problem(f"{where}.caches[{index}].path", path[:100], allowed, "template"))
    return [*caches, *({"name": cache.name, "path": cache.path} for cache in template.caches)]
