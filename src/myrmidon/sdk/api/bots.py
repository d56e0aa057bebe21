"""Calls about bots and their releases."""

from __future__ import annotations

from typing import Any

from myrmidon.sdk.api.caller import Caller, segment
from myrmidon.wire import bots as wire
from myrmidon.wire.fields import Done
from myrmidon.wire.releases import ReleaseInfo, ReleaseList


class BotCalls(Caller):
    def bots(self, **filters: Any) -> wire.BotList:
        """One page. Filters: dimension, state, limit, cursor."""
        return self.call("GET", "bots", wire.BotList, query=filters)

    def bot(self, bot_id: str) -> wire.BotInfo:
        return self.call("GET", f"bots/{segment(bot_id)}", wire.BotInfo)

    def bot_events(self, bot_id: str, **page: Any) -> wire.BotEventList:
        return self.call("GET", f"bots/{segment(bot_id)}/events", wire.BotEventList, query=page)

    def bot_tasks(self, bot_id: str, **page: Any) -> wire.BotRunList:
        return self.call("GET", f"bots/{segment(bot_id)}/tasks", wire.BotRunList, query=page)

    def bot_dimensions(self, pool: str | None = None) -> wire.DimensionList:
        """The dimensions of bots, with the number of bots that have each."""
        return self.call("GET", "bots/dimensions", wire.DimensionList, query={"pool": pool})

    def quarantine(self, bot_id: str, reason: str | None, *, key: str | None = None) -> wire.BotChanged:
        """Quarantine the bot: it gets no work. None ends that; an empty text keeps the reason that the bot has."""
        return self._post(f"bots/{segment(bot_id)}/quarantine", wire.BotChanged, {"reason": reason}, key)

    def drain(self, bot_id: str, *, draining: bool, key: str | None = None) -> wire.BotChanged:
        return self._post(f"bots/{segment(bot_id)}/drain", wire.BotChanged, {"draining": draining}, key)

    def terminate(self, bot_id: str, *, reason: str = "", key: str | None = None) -> wire.BotChanged:
        """Make the bot exit after its current work. The answer has the id of the terminate task."""
        return self._post(f"bots/{segment(bot_id)}/terminate", wire.BotChanged, {"reason": reason}, key)

    def delete_bot(self, bot_id: str, *, force: bool = False, key: str | None = None) -> Done:
        """Delete a bot and end its credentials. Conflict if it is alive, unless forced."""
        return self._delete(f"bots/{segment(bot_id)}", Done, key, {"force": True} if force else None)

    def revoke_bot(self, bot_id: str, *, key: str | None = None) -> wire.BotChanged:
        """End the bot's credentials: it must be introduced again with a bootstrap token."""
        return self._post(f"bots/{segment(bot_id)}/revoke", wire.BotChanged, {}, key)

    def bot_zip(self) -> bytes:
        """The zip file that the server's bots run."""
        return self.transport.call("GET", "/bot/v1/zip").data

    def releases(self) -> ReleaseList:
        """Releases of the bot, current and earlier."""
        return self.call("GET", "releases", ReleaseList)

    def revert_release(self, digest: str, *, reason: str = "", key: str | None = None) -> ReleaseInfo:
        """Revert a release of the bot: no bot is directed to run it any more."""
        return self._post(f"releases/{segment(digest)}/revert", ReleaseInfo, {"reason": reason}, key)

    def allow_release(self, digest: str, *, reason: str = "", key: str | None = None) -> ReleaseInfo:
        """Lift the ban of a reverted release of the bot."""
        return self._post(f"releases/{segment(digest)}/allow", ReleaseInfo, {"reason": reason}, key)
