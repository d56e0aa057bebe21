"""``@task``: marks a typed function as one that bots can run.

Outside of a job, and on a bot, the decorated function is the plain function. Inside a block of ``client.new_job`` a
call is recorded and returns a handle (recorder.py).
"""

from __future__ import annotations

import functools
import inspect
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    Mapping,
    Sequence,
    TypeVar,
    overload,
)

from myrmidon.functions.durations import Duration
from myrmidon.functions.graph_errors import HandleMisuse, at_caller
from myrmidon.functions.handles import Handle
from myrmidon.functions.native_task import NativeTarget, native_target
from myrmidon.functions.recorder import current_recorder
from myrmidon.functions.shared_ref import SharedRef, refuse
from myrmidon.functions.signature import Signature, signature_of
from myrmidon.functions.task_options import TaskOptions
from myrmidon.functions.types import TypeProblem

R = TypeVar("R")
if TYPE_CHECKING:
    import os
    from typing import Literal, ParamSpec, TypedDict, Unpack

    P = ParamSpec("P")

    class Options(TypedDict, total=False):
        """What ``@task(...)`` and ``.options(...)`` take; docs/functions.md says what each means."""

        label: str
        dimensions: Mapping[str, str | int | Sequence[str]]
        timeout: Duration | None
        soft_timeout: Duration | None
        max_instances: int
        reruns: int
        retries: int
        cache: bool | Duration
        memory_mb: int
        priority: int
        tags: Sequence[str]
        env: Mapping[str, str]
        after: Any
        shared: bool
        requirements: Sequence[str] | str | os.PathLike[str]
        python: str
        environment: str

else:  # ParamSpec came with Python 3.10; at run time any type variable does
    P = TypeVar("P")


class TaskFunction(Generic[P, R]):
    """A typed function with its options. ``function`` is the plain one; a partial's arguments are kept beside it."""

    is_myrmidon_task = True

    def __init__(
        self, function: Callable[..., R], options: TaskOptions, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> None:
        self.function = function
        self.task_options = options
        self.partial_args = tuple(args)
        self.partial_kwargs = dict(kwargs)
        self.code_module = function.__module__
        """The module whose code the call needs."""
        self.native: NativeTarget | None = None
        """Where the function is if it is in a shared library; ``function`` only declares it then."""
        functools.update_wrapper(self, function)
        self.__name__: str = function.__name__
        self.__qualname__: str = function.__qualname__
        if self.partial_args or self.partial_kwargs:
            # For inspect.signature and the like: the parameters that are left.
            self.__signature__ = inspect.signature(functools.partial(function, *args, **kwargs))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        recorder = current_recorder()
        if recorder is not None:
            recorder.check_thread()
            return recorder.record_call(self, args, kwargs)  # type: ignore[no-any-return]
        for value in (*args, *kwargs.values()):
            if isinstance(value, Handle):
                raise HandleMisuse(at_caller(f"{value!r} was passed to a call outside of the block of its job"))
            if isinstance(value, SharedRef):
                refuse(value, "it was passed to a call that runs here")
        if self.native is not None:
            bound = (*self.partial_args, *args)
            return self.native.call(self.signature, bound, {**self.partial_kwargs, **kwargs})  # type: ignore[no-any-return]
        return self.function(*self.partial_args, *args, **{**self.partial_kwargs, **kwargs})

    def options(self, **given: Unpack[Options]) -> TaskFunction[P, R]:
        """Return the same function with other options, for one call or many."""
        return self.copy(self.task_options.changed(**given), self.partial_args, self.partial_kwargs)

    def copy(self, options: TaskOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskFunction[P, R]:
        """Return the same function with these options, and with these arguments bound."""
        other: TaskFunction[P, R] = TaskFunction(self.function, options, args, kwargs)
        other.code_module, other.native = self.code_module, self.native
        other.__dict__["_typed"] = self.__dict__.get("_typed")
        return other

    def use_library(self, native: NativeTarget) -> None:
        """Make this the declaration of a function in a shared library."""
        self.native, self.code_module = native, native.code_module

    @property
    def signature(self) -> Signature:
        """The typed signature; annotations that are texts are resolved when it is first needed."""
        found = self.__dict__.get("_typed")
        if found is None:
            found = self.__dict__["_typed"] = signature_of(self.function)
        return found

    def __repr__(self) -> str:
        return f"<task {self.__module__}.{self.__qualname__}>"


@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(**options: Unpack[Options]) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
@overload
def task(
    *,
    library: str | os.PathLike[str],
    language: Literal["cpp", "rust"] = "cpp",
    name: str = "",
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
def task(function: Any = None, /, *, library: Any = None, language: str = "cpp", name: str = "", **options: Any) -> Any:
    """Mark a function as a task. Raises TypeError for one that a bot could not call by its name and types.

    With ``library`` it declares the function ``name`` of a shared library (default: its own name); see docs/native.md.
    """
    if "after" in options:
        raise TypeError("after= belongs to a call: write function.options(after=[...])(...)")
    checked = TaskOptions().changed(**options)

    def decorate(decorated: Any) -> TaskFunction[Any, Any]:
        made = _decorated(decorated, checked, is_declaration=library is not None)
        if library is not None:
            made.use_library(native_target(made.function, library, language, name))
        return made

    return decorate if function is None else decorate(function)


def _decorated(function: Any, options: TaskOptions, *, is_declaration: bool = False) -> TaskFunction[Any, Any]:
    """The task function of a plain function. A declaration of a native function is not imported by bots."""
    if isinstance(function, functools.partial):
        inner, args, kwargs = task_function_of(function)
        return inner.copy(options, args, kwargs)
    plain = function.__func__ if isinstance(function, staticmethod) else function
    if not is_declaration:
        check_importable(plain)
    made: TaskFunction[Any, Any] = TaskFunction(plain, options)
    try:
        made.signature  # noqa: B018 - raises for types that cannot be sent
    except TypeProblem as problem:
        if not isinstance(problem.__cause__ or problem.__context__, NameError):
            raise
        # An annotation names a class that is defined further down: it is resolved when the function is first used.
    return made


def check_importable(function: Any) -> None:
    """Raise TypeProblem unless a bot can find the function by its module and name and call it without an object."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, (classmethod, property)):
        raise TypeProblem("a task cannot be a method: bots have no object to call it on; use a staticmethod")
    if inspect.ismethod(function):
        raise TypeProblem(f"{name} is a method; bots have no object to call it on; use a function or a staticmethod")
    if not inspect.isfunction(function):
        raise TypeProblem(f"{name} is not a function that is written in Python; define one that calls it")
    if function.__name__ == "<lambda>":
        raise TypeProblem("a lambda has no name that a bot could import; define a function")
    if function.__closure__ is not None and function.__code__.co_freevars != ("__class__",):
        names = ", ".join(function.__code__.co_freevars)
        raise TypeProblem(f"{name} uses variables of the function around it ({names}); pass them as arguments")
    if "<locals>" in name:
        raise TypeProblem(f"{name} is defined inside a function; a bot can only import it from the top of a module")
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is first.empty and "." in name:
        raise TypeProblem(f"{name} is a method; bots have no object to call it on; use a function or a staticmethod")


def task_function_of(function: Any) -> tuple[TaskFunction[Any, Any], tuple[Any, ...], dict[str, Any]]:
    """The task function of a task, a partial of one or a typed plain function, and the arguments that are bound."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args = (*function.args, *args)
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    found = function if isinstance(function, TaskFunction) else _undecorated(function)
    return found, (*found.partial_args, *args), {**found.partial_kwargs, **kwargs}


@functools.lru_cache(maxsize=1_024)
def _undecorated(function: Any) -> TaskFunction[Any, Any]:
    return _decorated(function, TaskOptions())
