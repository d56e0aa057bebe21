"""All calls of the server, as ``client.api``."""

from __future__ import annotations

from myrmidon.sdk.api.administration import GroupCalls, QueueCalls, ServerCalls, TokenCalls, WebhookCalls
from myrmidon.sdk.api.any_path import AnyPathCalls
from myrmidon.sdk.api.bots import BotCalls
from myrmidon.sdk.api.jobs import JobCalls
from myrmidon.sdk.api.logs import LogCalls
from myrmidon.sdk.api.overview import OverviewCalls, SessionCalls
from myrmidon.sdk.api.tasks import TaskCalls
from myrmidon.sdk.api.values import SharedValueCalls, ValueCalls


class Api(
    TaskCalls,
    LogCalls,
    JobCalls,
    ValueCalls,
    SharedValueCalls,
    BotCalls,
    ServerCalls,
    QueueCalls,
    GroupCalls,
    TokenCalls,
    WebhookCalls,
    AnyPathCalls,
    OverviewCalls,
    SessionCalls,
):
    """One method for each call. Ids are strings as the server prints them; times are microseconds UTC."""
