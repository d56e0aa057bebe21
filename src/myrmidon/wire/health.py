"""The servers: the answers of /api/v1/server, /api/v1/servers and of the health checks."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.wire.fields import Micros


class Health(Struct, frozen=True):
    """``notes`` tell of what users may miss although this server can do its work, such as a sink that is behind."""

    ok: bool
    problems: list[str] = []
    notes: list[str] = []


class ServerInfo(Struct, frozen=True, kw_only=True):
    version: str
    time: Micros
    bot_version: str
    public_url: str
    disk_free: int | None = None
    """Free bytes of the disk with this server's data folder; null if they cannot be determined."""
    who: str
    role: str
    group: str | None
    retention_waits_until: Micros | None = None
    """When the deletion of old tasks begins again after a long gap in time; null without such a gap."""


class ServerLine(Struct, frozen=True):
    """One server on the database; ``this`` is true for the one that answers."""

    id: str
    address: str
    port: int
    heartbeat: Micros
    started_at: Micros
    alive: bool
    this: bool


class ServerList(Struct, frozen=True):
    servers: list[ServerLine]
