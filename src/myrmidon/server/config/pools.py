"""Pools: how they order their tasks, who may submit to them, and what every task of them gets. From ``pools.toml``.

    closed = false                          # true: pools that are not named here take no tasks

    [pool.ci]
    task_order = "fifo"                     # or "lifo"
    ageing_s = 600                          # waiting that is worth a step of priority; not with lifo
    default_expiration_s = 3600             # for slices that name none
    roles = ["admin", "user"]               # whose tokens may submit; all that may at all when left out
    groups = ["ci", "release"]              # for which resource groups; all when left out
    urgent = ["release", "ann"]             # groups, or names of tokens, that may use priorities below 20
    template = "base"
    canary_template = "next"                # instead of it for some tasks:
    canary_chance = 500                     # so many of 10,000

    [template.base]
    include = ["proxies"]                   # no template may come in twice
    env.LANG = "C.UTF-8"                    # hard: a task that sets it is refused
    env.CC = { value = "clang", soft = true }
    caches = [{ name = "git", path = "cache/git" }]

This file only reads; what a template does to a request is in pool_rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from myrmidon.model.task_request import Cache
from myrmidon.model.task_to_run import FIFO, LIFO, Order
from myrmidon.model.task_validation import CACHE_NAME, ENV_KEY
from myrmidon.model.validation import Checker, Path
from myrmidon.scheduler.policy import SECOND

MAX_POOLS = 10_000
CHANCE_SCALE = 10_000
MAX_INCLUDE_DEPTH = 16
ROLES = ("admin", "user", "viewer", "bot-bootstrap")
_TOP = frozenset({"closed", "pool", "template"})
_POOL = frozenset(
    {"task_order", "ageing_s", "default_expiration_s", "roles", "groups", "urgent", "template", "canary_template",
     "canary_chance", "owners"}
)  # fmt: skip
_TEMPLATE = frozenset({"include", "env", "caches"})
_ORDERS = {FIFO: FIFO, LIFO: LIFO}


class Variable(Struct, frozen=True):
    """A variable of the environment; a soft one gives way to the task's own."""

    value: str
    soft: bool = False


class Template(Struct, frozen=True, kw_only=True):
    """What tasks get, with everything that was included."""

    env: dict[str, Variable] = {}
    caches: list[Cache] = []


class PoolPolicy(Struct, frozen=True, kw_only=True):
    """What is decided for one pool. ``order`` None: nothing about its order is decided here."""

    name: str
    order: Order | None = None
    default_expiration_s: int | None = None
    roles: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    urgent: frozenset[str] = frozenset()
    template: Template | None = None
    canary: Template | None = None
    canary_chance: int = 0
    owners: list[str] = []


class Pools(Struct, frozen=True, kw_only=True):
    """All pools with rules. ``version`` goes into the tags of tasks that came under them."""

    policies: dict[str, PoolPolicy] = {}
    closed: bool = False
    version: str = ""


NO_POOLS = Pools()


def read_pools(check: Checker, raw: object, version: str) -> Pools:
    """The pools of a decoded ``pools.toml``; everything that is wrong with it is noted."""
    given = check.record(raw, ())
    check.unknown_keys(given, _TOP, ())
    templates = _Templates(check, check.mapping(given, "template", (), MAX_POOLS))
    tables = check.mapping(given, "pool", (), MAX_POOLS)
    pools = {name: _pool(check, name, table, ("pool", name), templates) for name, table in tables.items()}
    return Pools(policies=pools, closed=check.boolean(given, "closed", ()), version=version)


def _pool(check: Checker, name: str, raw: object, path: Path, templates: _Templates) -> PoolPolicy:
    check.item(name, path, check.limits.dimension_value_chars, least=1)
    given = check.record(raw, path)
    check.unknown_keys(given, _POOL, path)
    limits = check.limits
    chance = check.integer(given, "canary_chance", path, 0, CHANCE_SCALE - 1, default=0)
    if chance and given.get("canary_template") is None:
        check.note((*path, "canary_chance"), chance, "0 without a canary_template", "contradiction")
    return PoolPolicy(
        name=name,
        order=_order(check, given, path),
        default_expiration_s=check.maybe_integer(
            given, "default_expiration_s", path, limits.expiration_min_s, limits.expiration_max_s
        ),
        roles=_roles(check, given, path),
        groups=frozenset(_names(check, given, "groups", path)) if given.get("groups") is not None else None,
        urgent=frozenset(_names(check, given, "urgent", path)),
        template=templates.named(given, "template", path),
        canary=templates.named(given, "canary_template", path),
        canary_chance=chance,
        owners=_names(check, given, "owners", path),
    )


def _order(check: Checker, given: dict[str, object], path: Path) -> Order | None:
    if given.get("task_order") is None and given.get("ageing_s") is None:
        return None
    task_order = check.choice(given, "task_order", path, _ORDERS, FIFO)
    ageing = check.integer(given, "ageing_s", path, 0, 30 * 86_400, default=0)
    if ageing and task_order == LIFO:
        check.note((*path, "ageing_s"), ageing, "0 with lifo: ageing serves the oldest first", "contradiction")
    return Order(task_order, ageing * SECOND)


def _names(check: Checker, given: dict[str, object], key: str, path: Path) -> list[str]:
    return check.texts(given, key, path, 1000, chars=256, least_chars=1)


def _roles(check: Checker, given: dict[str, object], path: Path) -> frozenset[str] | None:
    if given.get("roles") is None:
        return None
    allowed = f"one of {', '.join(ROLES)}"
    return frozenset(check.texts(given, "roles", path, len(ROLES), chars=32, fits=ROLES.__contains__, allowed=allowed))


# ---------------------------------------------------------------- templates


class _Templates:
    """Templates by name, each with what it includes; what is wrong is noted once, where it stands."""

    def __init__(self, check: Checker, raws: Mapping[str, object]) -> None:
        self._check = check
        self._raws = {name: check.record(raw, ("template", name)) for name, raw in raws.items()}
        self._own: dict[str, Template] = {name: self._read(name) for name in self._raws}
        self._whole = {name: self._joined(name, (), set()) for name in self._raws}

    def named(self, given: dict[str, object], key: str, path: Path) -> Template | None:
        name = given.get(key)
        if name is None:
            return None
        if not isinstance(name, str) or name not in self._raws:
            there = ", ".join(sorted(self._raws)) or "there is none"
            self._check.note((*path, key), name, f"the name of a template: {there}", "unknown")
            return None
        return self._whole[name]

    def _read(self, name: str) -> Template:
        check, raw, path = self._check, self._raws[name], ("template", name)
        check.unknown_keys(raw, _TEMPLATE, path)
        for i, other in enumerate(check.texts(raw, "include", path, 100, chars=256)):
            if other not in self._raws:
                check.note((*path, "include", i), other, "the name of a template", "unknown")
        return Template(env=self._env(raw, path), caches=self._caches(raw, path))

    def _env(self, raw: dict[str, object], path: Path) -> dict[str, Variable]:
        check, limits = self._check, self._check.limits
        env: dict[str, Variable] = {}
        for key, said in check.mapping(raw, "env", path, limits.env_keys).items():
            here = (*path, "env", key)
            if len(key) > limits.env_key_chars or not ENV_KEY.fullmatch(key):
                check.note(here, key, "letters, digits and _, not starting with a digit", "key")
            table = {"value": said} if isinstance(said, str) else check.record(said, here)
            check.unknown_keys(table, frozenset({"value", "soft"}), here)
            value = check.text(table, "value", here, limits.env_value_chars)
            env[key] = Variable(value, check.boolean(table, "soft", here))
        return env

    def _caches(self, raw: dict[str, object], path: Path) -> list[Cache]:
        check, limits = self._check, self._check.limits
        caches = []
        for i, said in enumerate(check.listing(raw, "caches", path, limits.caches)):
            here = (*path, "caches", i)
            table = check.record(said, here)
            check.unknown_keys(table, frozenset({"name", "path"}), here)
            name = check.text(
                table, "name", here, limits.cache_name_chars, least=1, pattern=CACHE_NAME, allowed="a-z, 0-9 and _"
            )
            caches.append(Cache(name=name, path=check.relative(table, "path", here, limits.cache_path_chars)))
        return caches

    def _joined(self, name: str, through: tuple[str, ...], seen: set[str]) -> Template:
        """A template with all it includes. What it says itself counts; two that it includes must not contradict."""
        check, path = self._check, ("template", name)
        seen.add(name)
        env: dict[str, Variable] = {}
        caches: list[Cache] = []
        if len(through) == MAX_INCLUDE_DEPTH:
            check.note_shown((*path, "include"), f"{MAX_INCLUDE_DEPTH} steps", "templates nested less deeply", "depth")
            return self._own[name]
        for other in self._included(name):
            if other in seen:
                shown = " -> ".join([*through, name, other])
                check.note_shown((*path, "include"), shown, "templates that come in once only", "diamond")
                continue
            part = self._joined(other, (*through, name), seen)
            for twice in env.keys() & part.env.keys() - self._own[name].env.keys():
                check.note((*path, "include"), twice, "templates that do not set the same variable", "duplicate")
            env.update(part.env)
            caches += part.caches
        mine = self._own[name]
        caches = [*caches, *mine.caches]
        if not through:
            self._check_caches(caches, path)
        return Template(env={**env, **mine.env}, caches=caches)

    def _included(self, name: str) -> list[str]:
        said = self._raws[name].get("include")
        return [one for one in said if isinstance(one, str) and one in self._raws] if isinstance(said, list) else []

    def _check_caches(self, caches: list[Cache], path: Path) -> None:
        """No cache may hide another one."""
        for i, one in enumerate(caches):
            for other in caches[:i]:
                if one.name == other.name:
                    self._check.note((*path, "caches"), one.name, "a name no other cache has", "duplicate")
                elif one.path and other.path and paths_overlap(one.path, other.path):
                    shown = f"{one.path} and {other.path}"
                    self._check.note_shown((*path, "caches"), shown, "paths that do not lie in each other", "path")


def paths_overlap(one: str, other: str) -> bool:
    """Whether two folders are the same, or one lies in the other."""
    return one == other or "." in (one, other) or one.startswith(f"{other}/") or other.startswith(f"{one}/")
