"""How and where the calls of a task function run: the arguments of ``@task(...)`` and ``.options(...)``."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from typing import Any, Mapping, NamedTuple, Union

from myrmidon.functions.argument_checks import mapping, texts
from myrmidon.functions.durations import Duration, seconds
from myrmidon.functions.requirements import BUILT, NAME, Lines, check_lines

DEFAULT_POOL = "default"
WINDOW_S = 7 * 86_400
"""The default of the server's setting dedupe_days: results older than that are not reused in any case."""
CACHE_VARIABLE = "MYRMIDON_CACHE_PERIOD"
BUILTIN_RERUNS = 2
_VERSION = re.compile(r"3(\.[0-9]{1,3}){1,2}")


class StoredRequirements(NamedTuple):
    """Requirements whose document the server has already."""

    digest: str


Requirements = Union[str, Lines, StoredRequirements]
"""Checked lines, or the path of a lock file, which is read when a job is submitted: bots import the module too."""


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """The options of a task function, checked and in the units of the API. None: the default of the server."""

    label: str | None = None
    dimensions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    timeout_s: float | None = None
    soft_timeout_s: float | None = None
    max_instances: int = 0
    reruns: int = 0
    retries: int | None = None
    cache_s: float = 0
    memory_mb: int | None = None
    priority: int | None = None
    tags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    after: tuple[Any, ...] = ()
    shared: bool = False
    requirements: Requirements | None = None
    python: str | None = None
    environment: str | None = None

    def changed(self, **given: Any) -> TaskOptions:
        """A copy with these options, given as users write them; dimensions and env are added to those that exist."""
        unknown = sorted(given.keys() - _READERS.keys())
        if unknown:
            raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(_READERS))}")
        fields: dict[str, Any] = {}
        for name, value in given.items():
            field, read = _READERS[name]
            fields[field] = read(value)
        for name in ("dimensions", "env"):
            if name in fields:
                fields[name] = tuple({**dict(getattr(self, name)), **dict(fields[name])}.items())
        fields.update(_replaced_environment(fields))
        return dataclasses.replace(self, **fields)

    def of_builtin(self) -> TaskOptions:
        """The options of the executor's own functions in a map of a function with these options.

        They run where it runs. Its times are not theirs, and neither is the number of its reruns: they can be repeated
        without harm, so the loss of a process need not fail the job.
        """
        return TaskOptions(
            dimensions=self.dimensions,
            retries=self.retries,
            reruns=BUILTIN_RERUNS,
            priority=self.priority,
            tags=self.tags,
            requirements=self.requirements,
            python=self.python,
            environment=self.environment,
        )

    def with_environment_of(self, defaults: TaskOptions) -> TaskOptions:
        """A copy with the environment and the interpreter of a job, unless these options choose their own."""
        if self.environment is not None:
            return self
        if self.requirements is not None or defaults.environment is None:
            chosen = self.requirements if self.requirements is not None else defaults.requirements
            return dataclasses.replace(self, requirements=chosen, python=self.python or defaults.python)
        return self if self.python else dataclasses.replace(self, environment=defaults.environment)

    def properties(self, *, function: bool) -> dict[str, Any]:
        """The properties of the slice: where it runs, for how long, and whether earlier results may answer it."""
        dimensions = {"pool": [DEFAULT_POOL]}
        if function and self.environment is not None:
            dimensions["environment"] = [self.environment]
        elif function:
            dimensions["python"] = [self.python or "{}.{}".format(*sys.version_info[:2])]
            if self.requirements:
                dimensions["environment"] = [BUILT]
        dimensions.update({key: list(values) for key, values in self.dimensions})
        properties: dict[str, Any] = {"dimensions": {key: values for key, values in dimensions.items() if values}}
        env = dict(self.env)
        if self.timeout_s is not None:
            properties["execution_timeout_s"] = self.timeout_s
        if self.cache_s:
            properties["idempotent"] = True
            if self.cache_s < WINDOW_S:
                # Part of the dedupe key: a result is reused within one period only, so it is never older than that.
                env[CACHE_VARIABLE] = str(int(time.time() // self.cache_s))
        elif function:
            properties["api"] = "job"
        if env:
            properties["env"] = env
        return properties

    def request(self) -> dict[str, Any]:
        """The fields of the task request beside its slices."""
        fields: dict[str, Any] = {}
        if self.soft_timeout_s is not None:
            fields["soft_timeout_s"] = self.soft_timeout_s
            fields["max_instances"] = self.max_instances or 2
        elif self.max_instances:
            fields["max_instances"] = self.max_instances
        if self.reruns:
            fields["reruns"] = self.reruns
        for name in ("retries", "priority"):
            if getattr(self, name) is not None:
                fields[name] = getattr(self, name)
        if self.tags:
            fields["tags"] = list(self.tags)
        return fields


def _label(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError(f"the label is {value!r}; write a text of 1 to 200 characters")
    return value


def _dimensions(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Values as lists; an empty one removes a default, such as the version of Python."""
    given = mapping("dimensions", value, "{'os': 'Linux'}")
    return tuple(
        (key, (str(one),) if isinstance(one, (str, int)) else texts(f"dimensions[{key!r}]", one, "['Linux']"))
        for key, one in given.items()
    )


def _env(value: object) -> tuple[tuple[str, str], ...]:
    given = mapping("env", value, "{'LANG': 'C.UTF-8'}")
    for key, text in given.items():
        if not isinstance(text, (str, int, float, os.PathLike)):
            raise TypeError(f"env[{key!r}] is {text!r}; write a text, an empty one to unset the variable")
    return tuple((key, str(text)) for key, text in given.items())


def _shared(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"shared is {value!r}; write True or False")
    return value


def _number(name: str, least: int) -> Any:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; write a number of at least {least}")
        return value

    return read


def _duration(name: str) -> Any:
    return lambda value: None if value is None else seconds(value, name)


def _cache(value: bool | Duration) -> float:
    if value is True:
        return WINDOW_S
    return seconds(value, "cache") if value is not False and value is not None else 0


def _after(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _requirements(value: object) -> Requirements:
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"requirements is {value!r}; write a list such as ['numpy==2.*'], or the path of a lock file")
    return check_lines(value)


def _python(value: object) -> str:
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise ValueError(f"python is {value!r}; write a version such as '3.12'")
    return value


def _environment(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value) or value == BUILT:
        raise ValueError(f"environment is {value!r}; write the name of an environment that bots offer, such as 'gpu'")
    return value


def _replaced_environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to reset: an environment of the bots has its own packages and interpreter."""
    others = [name for name in ("requirements", "python") if given.get(name)]
    if "environment" not in given:
        return {"environment": None} if others else {}
    if others:
        raise ValueError(f"environment= has its own packages and interpreter: leave out {others[0]}=")
    return {"requirements": None, "python": None}


_READERS = {
    "label": ("label", _label),
    "dimensions": ("dimensions", _dimensions),
    "timeout": ("timeout_s", _duration("timeout")),
    "soft_timeout": ("soft_timeout_s", _duration("soft_timeout")),
    "max_instances": ("max_instances", _number("max_instances", 1)),
    "reruns": ("reruns", _number("reruns", 0)),
    "retries": ("retries", _number("retries", 0)),
    "cache": ("cache_s", _cache),
    "memory_mb": ("memory_mb", _number("memory_mb", 1)),
    "priority": ("priority", _number("priority", 0)),
    "tags": ("tags", lambda value: texts("tags", value, "['team:build']")),
    "env": ("env", _env),
    "after": ("after", _after),
    "shared": ("shared", _shared),
    "requirements": ("requirements", _requirements),
    "python": ("python", _python),
    "environment": ("environment", _environment),
}
