"""Webhooks: the bodies, queries and answers of /api/v1/webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.wire.fields import Micros, Name

MessageKind = Literal[
    "task-pending", "task-running", "task-completed", "task-failed", "task-exception",
    "task-graph-running", "task-graph-blocked", "task-graph-finished", "task-graph-extended",
]  # fmt: skip


class NewWebhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL that gets the messages of a resource group; without ``kinds`` those of all kinds."""

    url: Annotated[str, Meta(min_length=1, max_length=2048, examples=["https://hooks.example/myrmidon"])]
    kinds: Annotated[list[MessageKind], Meta(max_length=9)] = []
    group: Name | None = None


class WebhookInfo(Struct, frozen=True, kw_only=True):
    """A webhook. ``secret`` signs its messages; it is present only in the response that creates the webhook."""

    id: str
    url: str
    kinds: list[str]
    group: str
    created_at: Micros
    num_pending: int
    """Messages that wait."""
    num_failures: int
    """Failed attempts since the last successful one."""
    num_dropped: int
    """Messages that were dropped because too many waited."""
    next_attempt_at: Micros | None
    secret: str | None = None


class WebhookList(Struct, frozen=True):
    webhooks: list[WebhookInfo]


class DeliveryInfo(Struct, frozen=True, kw_only=True):
    """One message for a webhook: pending, delivered or failed; ``error`` is that of the last attempt."""

    id: str
    message_id: str
    kind: str
    state: Literal["pending", "delivered", "failed"]
    queued_at: Micros
    num_attempts: int
    attempted_at: Micros | None
    status: int | None
    error: str | None


class DeliveryList(Struct, frozen=True):
    deliveries: list[DeliveryInfo]
    cursor: str | None
