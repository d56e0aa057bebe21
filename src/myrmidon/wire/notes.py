"""Summaries of tasks, and the small texts that the tasks of a job share: bodies and answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Micros

MAX_ANNOTATION = 65_536
"""Characters of a summary."""
MAX_META_VALUE = 4_096
"""Characters of one text of a job."""
MetaName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.\-]+(?!\n)$")]


class Annotate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A summary in Markdown, which replaces an earlier one; an empty text removes it."""

    content: Annotated[str, Meta(max_length=MAX_ANNOTATION)]


class Annotation(Struct, frozen=True, kw_only=True):
    """The summary of a task. ``run`` is the run that wrote it; null if a person did."""

    content: str
    written_at: Micros
    run: str | None


class SetMeta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text of a job; null deletes it."""

    name: MetaName
    value: Annotated[str, Meta(max_length=MAX_META_VALUE)] | None


class JobMeta(Struct, frozen=True, kw_only=True):
    """The texts of a job by name."""

    values: dict[str, str]
