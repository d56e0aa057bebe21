"""``TaskContext``: the first parameter of functions that are written for Spider."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, List

from myrmidon.functions.context import context

if TYPE_CHECKING:
    from myrmidon.functions.context import Context


@dataclass
class Data:
    """Bytes with the addresses of machines that have what they describe, such as the path of a file there.

    It is passed by its content. One that was created (``create_data``) has an ``id`` and is stored once, as a shared
    value; calls then refer to it.
    """

    value: bytes
    localities: List[str] = field(default_factory=list)  # noqa: UP006 - evaluated, also by Python 3.8

    def __post_init__(self) -> None:
        self.id: str | None = None

    @staticmethod
    def from_value(value: bytes, localities: list[str] | None = None) -> Data:
        return Data(bytes(value), list(localities or []))


class TaskContext:
    """The run of a function. Not an argument: a function that has it as its first parameter gets it from the bot."""

    @property
    def context(self) -> Context:
        """Return the context of the call that runs: its progress, its log, and calls that extend the job."""
        return context()

    @property
    def task_id(self) -> str:
        return context().task_id

    def create_data(self, data: Data) -> Data:
        """Store data once, for calls that this run submits; the job keeps it. It can be created once only."""
        if data.id is not None:
            raise ValueError(f"the data was created already, as {data.id}")
        shared = context().share(data, Data, data.localities)
        data.id = getattr(shared, "id", None) or "local"
        return data
