"""Spider's Python API on Myrmidon (docs/spider.md).

from myrmidon.spider import Driver, Int64, TaskContext, chain, group

This file is also a part of the bot zip, where only ``Driver`` and what it returns are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NewType

from myrmidon import client_placeholder
from myrmidon.functions.task_context import Data, TaskContext
from myrmidon.functions.task_graph import TaskGraph, chain, group
from myrmidon.functions.types import Int8, Int16, Int32, Int64

if TYPE_CHECKING:
    from myrmidon.sdk.spider import Driver, Job, JobStatus

Float = NewType("Float", float)
"""A number of 64 bits: nothing is rounded to 32, as in Spider."""
Double = NewType("Double", float)
__all__ = [
    "Driver", "Job", "JobStatus", "TaskContext", "TaskGraph", "Data", "chain", "group",
    "Int8", "Int16", "Int32", "Int64", "Float", "Double",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in ("Driver", "Job", "JobStatus"):
        raise AttributeError(f"module 'myrmidon.spider' has no attribute {name!r}")
    try:
        from myrmidon.sdk import spider
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("myrmidon.sdk"):
            raise
        return client_placeholder(name)
    return getattr(spider, name)
