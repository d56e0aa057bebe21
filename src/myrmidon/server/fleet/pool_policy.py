"""What the rules of a pool do to a request on its way in: who may submit, how urgently, and what every task gets.

One place for all APIs, called once for each request, before it is checked in full. A pool without rules costs one
look into a table. Whether the caller may submit at all comes first, so that nothing is told of a pool to those
whom it does not concern. What makes no sense is left to the checks that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myrmidon.model.errors import Forbidden, InvalidRequest, Problem
from myrmidon.server.calls import Identity, Role
from myrmidon.server.config.pools import CHANCE_SCALE, PoolPolicy, Template, paths_overlap
from myrmidon.server.context import ServerContext

RESERVED_PRIORITY = 20
"""Priorities below this overtake everybody's work: for administrators, and those whom a pool trusts with it."""
AUTO, CANARY_PREFER, CANARY_NEVER, SKIP = "AUTO", "CANARY_PREFER", "CANARY_NEVER", "SKIP"
_NO_POOL = PoolPolicy(name="")


def apply_pool_policy(
    context: ServerContext,
    who: Identity,
    raw: Any,
    *,
    group: str | None = None,
    clamp: bool = False,
    template: str = AUTO,
) -> tuple[Any, list[str]]:
    """The request as its pool wants it, and what the caller should be told of that; the one given is left as it is.

    ``clamp`` raises a priority that the caller has no right to, and says so; without it that is Forbidden.
    """
    pools = context.state.config.pools
    pool = pool_of(raw)
    group = group or who.group or context.settings.default_group
    rules = pools.policies.get(pool) if pool is not None else _NO_POOL
    if rules is None:
        if pools.closed and who.role is not Role.ADMIN:
            raise _no_such_pool(pool)
        rules = _NO_POOL
    if rules.name:
        _check_submitter(rules, who, group)
    raw, notes = _with_priority(rules, who, raw, group=group, clamp=clamp)
    if not rules.name:
        return raw, notes
    word, chosen = choose_template(rules, template, chance=context.random_int(CHANCE_SCALE))
    told = [f"swarming.pool.template:{word}", f"swarming.pool.version:{pools.version}"]
    return _with_rules(rules, raw, chosen, told), notes


def pool_of(raw: Any) -> str | None:
    """The pool that a request wants; None where it is not a request that could be stored."""
    try:
        pool = raw["slices"][0]["properties"]["dimensions"]["pool"][0]
    except (TypeError, KeyError, IndexError):
        return None
    return pool if type(pool) is str else None


def _no_such_pool(pool: str | None) -> Forbidden:
    """The same words whether there is none or it is not for this caller."""
    return Forbidden(f"There is no pool {str(pool)[:100]!r} that this token may submit to.")


def _check_submitter(rules: PoolPolicy, who: Identity, group: str) -> None:
    if who.role is Role.ADMIN:
        return
    if rules.roles is not None and who.role not in rules.roles:
        raise _no_such_pool(rules.name)
    if rules.groups is not None and group not in rules.groups:
        raise _no_such_pool(rules.name)


def may_be_urgent(rules: PoolPolicy, who: Identity, group: str) -> bool:
    """The right to priorities below 20: an administrator's, or a token or a group that the pool names."""
    return who.role is Role.ADMIN or who.name in rules.urgent or group in rules.urgent


def _with_priority(rules: PoolPolicy, who: Identity, raw: Any, *, group: str, clamp: bool) -> tuple[Any, list[str]]:
    priority = raw.get("priority") if type(raw) is dict else None
    if type(priority) is not int or not 0 <= priority < RESERVED_PRIORITY or may_be_urgent(rules, who, group):
        return raw, []
    if not clamp:
        raise Forbidden(f"Priorities below {RESERVED_PRIORITY} are for administrators and those a pool calls urgent.")
    note = f"The priority {priority} was raised to {RESERVED_PRIORITY}: lower ones need a right."
    return {**raw, "priority": RESERVED_PRIORITY}, [note]


# ---------------------------------------------------------------- what every task gets


def _with_rules(rules: PoolPolicy, raw: Any, template: Template | None, told: list[str]) -> Any:
    tags = raw.get("tags")
    problems: list[Problem] = []
    slices = [
        _with_template(_with_expiration(one, rules.default_expiration_s), template, number, problems)
        for number, one in enumerate(raw["slices"])
    ]
    if problems:
        raise InvalidRequest(problems)
    return {
        **raw,
        "slices": slices,
        "tags": [*tags, *told] if isinstance(tags, list) else told if tags is None else tags,
    }


def choose_template(rules: PoolPolicy, wish: str, *, chance: int) -> tuple[str, Template | None]:
    """Which template counts, and the word for it in the task's tags; ``chance`` was drawn from 0 to 9,999."""
    if wish == SKIP:
        return "skip", None
    canary = rules.canary is not None and wish != CANARY_NEVER
    if canary and (wish == CANARY_PREFER or chance < rules.canary_chance):
        return "canary", rules.canary
    return ("prod", rules.template) if rules.template is not None else ("none", None)


def _with_expiration(piece: Any, usual: int | None) -> Any:
    if usual is None or type(piece) is not dict or piece.get("expiration_s") is not None:
        return piece
    return {**piece, "expiration_s": usual}


def _with_template(piece: Any, template: Template | None, number: int, problems: list[Problem]) -> Any:
    properties = piece.get("properties") if type(piece) is dict else None
    if template is None or type(properties) is not dict:
        return piece
    where = f"slices[{number}].properties"
    env, caches = properties.get("env") or {}, properties.get("caches") or []
    if not isinstance(env, dict) or not isinstance(caches, list):
        return piece
    changed = {
        **properties,
        "env": _joined_env(env, template, where, problems),
        "caches": _joined_caches(caches, template, where, problems),
    }
    return {**piece, "properties": changed}


def _joined_env(env: Mapping[Any, Any], template: Template, where: str, problems: list[Problem]) -> dict[Any, Any]:
    joined = dict(env)
    for key, variable in template.env.items():
        if key not in env:
            joined[key] = variable.value
        elif not variable.soft:
            problems.append(Problem(f"{where}.env.{key}", "a value", "none: the pool's template sets it", "template"))
    return joined


def _joined_caches(caches: list[Any], template: Template, where: str, problems: list[Problem]) -> list[Any]:
    """No cache may hide another one: what lies in a folder must be what its task thinks."""
    for number, one in enumerate(caches):
        name, path = (one.get("name"), one.get("path")) if isinstance(one, dict) else (None, None)
        for other in template.caches:
            if name == other.name:
                place = f"{where}.caches[{number}].name"
                problems.append(Problem(place, str(name), "a name that the pool's template does not use", "template"))
            elif isinstance(path, str) and paths_overlap(path, other.path):
                place = f"{where}.caches[{number}].path"
                allowed = f"a folder apart from {other.path}, which the pool's template uses"
                problems.append(Problem(place, path[:100], allowed, "template"))
    return [*caches, *({"name": one.name, "path": one.path} for one in template.caches)]
