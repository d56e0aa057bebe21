"""Parses ``pools.toml``: the task order of pools, who may submit to them, and what is added to their tasks.

    closed = false                          # true: only the pools listed here accept tasks

    [pool.ci]
    task_order = "fifo"                     # or "lifo"
    ageing_s = 600                          # waiting this long raises the priority by one step; not with lifo
    default_expiration_s = 3600             # for slices without expiration_s
    default_retries = 0                     # for tasks without retries, so for all tasks of the Swarming API
    roles = ["admin", "user"]               # roles that may submit; default: every role that may submit at all
    groups = ["ci", "release"]              # resource groups that may submit; default: all
    urgent = ["release", "ann"]             # resource groups or token names that may use priorities below 20
    owners = ["ann@example.org"]
    require_isolation = true                # only bots that keep tasks away from their files and secrets
    template = "base"
    canary_template = "next"                # used in place of template for a share of the tasks
    canary_chance = 500                     # that share, of 10,000

    [resource_group.release]
    require_isolation = true                # the same for the tasks of a resource group, in every pool

    [template.base]
    include = ["proxies"]                   # a template may be included only once
    env.LANG = "C.UTF-8"                    # fixed: a task that sets it is rejected
    env.CC = { value = "clang", soft = true }   # default: a task may override it
    caches = [{ name = "git", path = "cache/git" }]

``fleet.pool_policy`` applies the result to requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from myrmidon.model.shown_input import Path
from myrmidon.model.slice_validation import ENV_KEY, GivenCache, is_inside
from myrmidon.model.task_request import Cache
from myrmidon.model.task_to_run import FIFO, LIFO, Order
from myrmidon.model.validation import Checker
from myrmidon.scheduler.policy import SECOND

MAX_POOLS = 10_000
CHANCE_SCALE = 10_000
"""What ``canary_chance`` is a share of."""
MAX_INCLUDE_DEPTH = 16
ROLES = ("admin", "user", "viewer", "bot-bootstrap")
_TOP_LEVEL_KEYS = frozenset({"closed", "pool", "resource_group", "template"})
_POOL_KEYS = frozenset(
    {"task_order", "ageing_s", "default_expiration_s", "default_retries", "roles", "groups", "urgent", "template",
     "canary_template", "canary_chance", "owners", "require_isolation"}
)  # fmt: skip
_RESOURCE_GROUP_KEYS = frozenset({"require_isolation"})
_TEMPLATE_KEYS = frozenset({"include", "env", "caches"})
_ORDERS = {FIFO: FIFO, LIFO: LIFO}


class Variable(Struct, frozen=True):
    """An environment variable; a task may override a soft one."""

    value: str
    soft: bool = False


class Template(Struct, frozen=True, kw_only=True):
    """What is added to tasks, including what comes from included templates."""

    env: dict[str, Variable] = {}
    caches: list[Cache] = []


class PoolPolicy(Struct, frozen=True, kw_only=True):
    """One ``[pool.NAME]`` of ``pools.toml``."""

    name: str
    order: Order | None = None
    """None if the file does not set it: then the API and the server's setting ``pools`` may."""
    default_expiration_s: int | None = None
    default_retries: int | None = None
    roles: frozenset[str] | None = None
    """None allows every role that may submit."""
    groups: frozenset[str] | None = None
    """None allows every resource group."""
    urgent: frozenset[str] = frozenset()
    template: Template | None = None
    canary: Template | None = None
    canary_chance: int = 0
    owners: list[str] = []
    require_isolation: bool = False


class Pools(Struct, frozen=True, kw_only=True):
    """The content of ``pools.toml``. Tasks of its pools get ``version`` as a tag."""

    policies: dict[str, PoolPolicy] = {}
    isolated_groups: frozenset[str] = frozenset()
    """Resource groups whose tasks only isolated bots get."""
    closed: bool = False
    version: str = ""


NO_POOLS = Pools()


def read_pools(check: Checker, raw: object, version: str) -> Pools:
    """Read a decoded ``pools.toml``; all problems are recorded in ``check``."""
    table = check.record(raw, ())
    check.unknown_keys(table, _TOP_LEVEL_KEYS, ())
    templates = _Templates(check, check.mapping(table, "template", (), MAX_POOLS))
    pools = check.mapping(table, "pool", (), MAX_POOLS)
    policies = {name: _read_pool(check, name, pool, ("pool", name), templates) for name, pool in pools.items()}
    groups = check.mapping(table, "resource_group", (), MAX_POOLS)
    isolated = frozenset(name for name, group in groups.items() if _requires_isolation(check, name, group))
    closed = check.boolean(table, "closed", ())
    return Pools(policies=policies, isolated_groups=isolated, closed=closed, version=version)


def _requires_isolation(check: Checker, name: str, raw: object) -> bool:
    path: Path = ("resource_group", name)
    table = check.record(raw, path)
    check.unknown_keys(table, _RESOURCE_GROUP_KEYS, path)
    return check.boolean(table, "require_isolation", path)


def _read_pool(check: Checker, name: str, raw: object, path: Path, templates: _Templates) -> PoolPolicy:
    check.item(name, path, check.limits.dimension_value_chars, minimum=1)
    table = check.record(raw, path)
    check.unknown_keys(table, _POOL_KEYS, path)
    limits = check.limits
    chance = check.integer(table, "canary_chance", path, 0, CHANCE_SCALE - 1, default=0)
    if chance and table.get("canary_template") is None:
        check.note((*path, "canary_chance"), chance, "0, because canary_template is not set", "contradiction")
    return PoolPolicy(
        name=name,
        order=_read_order(check, table, path),
        default_expiration_s=check.optional_integer(
            table, "default_expiration_s", path, limits.expiration_min_s, limits.expiration_max_s
        ),
        default_retries=check.optional_integer(table, "default_retries", path, 0, limits.retries_max),
        roles=_read_roles(check, table, path),
        groups=frozenset(_read_names(check, table, "groups", path)) if table.get("groups") is not None else None,
        urgent=frozenset(_read_names(check, table, "urgent", path)),
        template=templates.read(table, "template", path),
        canary=templates.read(table, "canary_template", path),
        canary_chance=chance,
        owners=_read_names(check, table, "owners", path),
        require_isolation=check.boolean(table, "require_isolation", path),
    )


def _read_order(check: Checker, table: dict[str, object], path: Path) -> Order | None:
    if table.get("task_order") is None and table.get("ageing_s") is None:
        return None
    task_order = check.choice(table, "task_order", path, _ORDERS, FIFO)
    ageing = check.integer(table, "ageing_s", path, 0, 30 * 86_400, default=0)
    if ageing and task_order == LIFO:
        check.note((*path, "ageing_s"), ageing, "0 with task_order = 'lifo'", "contradiction")
    return Order(task_order, ageing * SECOND)


def _read_names(check: Checker, table: dict[str, object], key: str, path: Path) -> list[str]:
    return check.texts(table, key, path, 1000, chars=256, minimum_chars=1)


def _read_roles(check: Checker, table: dict[str, object], path: Path) -> frozenset[str] | None:
    if table.get("roles") is None:
        return None
    allowed = f"one of {', '.join(ROLES)}"
    return frozenset(check.texts(table, "roles", path, len(ROLES), chars=32, fits=ROLES.__contains__, allowed=allowed))


# ---------------------------------------------------------------- templates


class _Templates:
    """All templates by name, merged with what they include. Each problem is recorded once, at the template it is in."""

    def __init__(self, check: Checker, raws: Mapping[str, object]) -> None:
        self._check = check
        self._raws = {name: check.record(raw, ("template", name)) for name, raw in raws.items()}
        self._unmerged: dict[str, Template] = {name: self._read_template(name) for name in self._raws}
        self._merged = {name: self._merge(name, (), set()) for name in self._raws}

    def read(self, table: dict[str, object], key: str, path: Path) -> Template | None:
        """The template that ``table[key]`` names."""
        name = table.get(key)
        if name is None:
            return None
        if not isinstance(name, str) or name not in self._raws:
            self._check.note((*path, key), name, self._allowed_names(), "unknown")
            return None
        return self._merged[name]

    def _allowed_names(self) -> str:
        return f"the name of a template ({', '.join(sorted(self._raws)) or 'there are none'})"

    def _read_template(self, name: str) -> Template:
        check, raw, path = self._check, self._raws[name], ("template", name)
        check.unknown_keys(raw, _TEMPLATE_KEYS, path)
        for i, other in enumerate(check.texts(raw, "include", path, 100, chars=256)):
            if other not in self._raws:
                check.note((*path, "include", i), other, self._allowed_names(), "unknown")
        return Template(env=self._read_env(raw, path), caches=self._read_caches(raw, path))

    def _read_env(self, raw: dict[str, object], path: Path) -> dict[str, Variable]:
        check, limits = self._check, self._check.limits
        env: dict[str, Variable] = {}
        for key, item in check.mapping(raw, "env", path, limits.env_keys).items():
            here = (*path, "env", key)
            if len(key) > limits.env_key_chars or not ENV_KEY.fullmatch(key):
                check.note(here, key, "letters, digits and _, not starting with a digit", "key")
            table = {"value": item} if isinstance(item, str) else check.record(item, here)
            check.unknown_keys(table, frozenset({"value", "soft"}), here)
            value = check.text(table, "value", here, limits.env_value_chars)
            env[key] = Variable(value, check.boolean(table, "soft", here))
        return env

    def _read_caches(self, raw: dict[str, object], path: Path) -> list[Cache]:
        check, limits = self._check, self._check.limits
        caches = []
        for i, item in enumerate(check.listing(raw, "caches", path, limits.caches)):
            here = (*path, "caches", i)
            given: GivenCache | None = check.struct(item, GivenCache, here)
            if given is not None:
                caches.append(Cache(name=given.name, path=given.path))
        return caches

    def _merge(self, name: str, included_by: tuple[str, ...], seen: set[str]) -> Template:
        """A template with all it includes. Its own variables win; those of two included templates must differ."""
        check, path = self._check, ("template", name)
        seen.add(name)
        env: dict[str, Variable] = {}
        caches: list[Cache] = []
        own = self._unmerged[name]
        if len(included_by) == MAX_INCLUDE_DEPTH:
            allowed = f"at most {MAX_INCLUDE_DEPTH} levels of includes"
            check.note_shown((*path, "include"), "deeper nesting", allowed, "depth")
            return own
        for other in self._included(name):
            if other in seen:
                shown = " -> ".join([*included_by, name, other])
                check.note_shown((*path, "include"), shown, "each template included only once", "diamond")
                continue
            part = self._merge(other, (*included_by, name), seen)
            for key in env.keys() & part.env.keys() - own.env.keys():
                check.note((*path, "include"), key, "included templates that set different variables", "duplicate")
            env.update(part.env)
            caches += part.caches
        caches = [*caches, *own.caches]
        if not included_by:
            self._check_caches(caches, path)
        return Template(env={**env, **own.env}, caches=caches)

    def _included(self, name: str) -> list[str]:
        """The existing templates that this one includes; the others were recorded by ``_read_template``."""
        names = self._raws[name].get("include")
        if not isinstance(names, list):
            return []
        return [other for other in names if isinstance(other, str) and other in self._raws]

    def _check_caches(self, caches: list[Cache], path: Path) -> None:
        """Record caches of the same name, and caches whose folder is inside that of another."""
        for i, cache in enumerate(caches):
            for other in caches[:i]:
                if cache.name == other.name:
                    self._check.note((*path, "caches"), cache.name, "each cache name only once", "duplicate")
                elif cache.path and other.path and paths_overlap(cache.path, other.path):
                    shown = f"{cache.path} and {other.path}"
                    self._check.note_shown((*path, "caches"), shown, "paths that are not inside each other", "path")


def paths_overlap(path: str, other: str) -> bool:
    """Whether two relative paths are equal, or one is inside the other."""
    return path == other or is_inside(path, other) or is_inside(other, path)
