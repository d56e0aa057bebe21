"""Calls about the installation: servers, configuration, queues, pools, resource groups, tokens, webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from myrmidon.sdk.api.caller import Caller, decode, segment
from myrmidon.sdk.transport import new_key
from myrmidon.wire.config import ConfigChanged, FleetSettings, History
from myrmidon.wire.fields import Done
from myrmidon.wire.health import Health, ServerInfo, ServerList
from myrmidon.wire.queues import PoolInfo, PoolList, QueueList
from myrmidon.wire.resource_groups import GroupDetails, GroupInfo, GroupList
from myrmidon.wire.tokens import TokenInfo, TokenList
from myrmidon.wire.webhooks import DeliveryList, WebhookInfo, WebhookList


class ServerCalls(Caller):
    def server(self) -> ServerInfo:
        """The server's version and time, the version of its bots, and the caller's identity and role."""
        return self.call("GET", "server", ServerInfo)

    def servers(self) -> ServerList:
        return self.call("GET", "servers", ServerList)

    def readiness(self, *, within_s: float | None = None) -> Health:
        """Whether the server and its database work, and what users may miss, such as late messages.

        Raises Overloaded when the server answers that they do not work, after ``within_s`` at most.
        """
        return decode(self.transport.call("GET", "/readyz", within_s=within_s).data, Health)

    def config(self) -> FleetSettings:
        """The active version of the configuration folder."""
        return self.call("GET", "config", FleetSettings)

    def change_config(
        self, files: Mapping[str, str | None], *, base: str | None = None, dry_run: bool = False
    ) -> ConfigChanged:
        """Set or, with None, remove files of the configuration; `dry_run` only checks the change."""
        body = {"files": dict(files), "base": base, "dry_run": dry_run}
        return self.call("POST", "config", ConfigChanged, body=body, key=new_key())

    def config_history(self, file: str | None = None, **page: Any) -> History:
        """Versions of the configuration folder, or of one of its files, newest first."""
        return self.call("GET", "config/history", History, query={**page, "file": file})


class QueueCalls(Caller):
    def queues(self, **page: Any) -> QueueList:
        return self.call("GET", "queues", QueueList, query=page)

    def pools(self, **page: Any) -> PoolList:
        return self.call("GET", "pools", PoolList, query=page)

    def set_pool(self, name: str, *, task_order: str, ageing: int | None = None, key: str | None = None) -> PoolInfo:
        body = {"task_order": task_order, "ageing": ageing}
        return self.call("PUT", f"pools/{segment(name)}", PoolInfo, body=body, key=key or new_key())


class GroupCalls(Caller):
    def groups(self, **page: Any) -> GroupList:
        return self.call("GET", "groups", GroupList, query=page)

    def create_group(self, name: str, *, key: str | None = None) -> GroupInfo:
        return self._post("groups", GroupInfo, {"name": name}, key)

    def group(self, name: str) -> GroupDetails:
        """A resource group and the numbers of what it owns."""
        return self.call("GET", f"groups/{segment(name)}", GroupDetails)

    def delete_group(self, name: str, *, force: bool = False, key: str | None = None) -> Done:
        """Delete a resource group with all it owns; ``force`` cancels what has not ended first."""
        return self._delete(f"groups/{segment(name)}", Done, key, {"force": "true"} if force else None)


class TokenCalls(Caller):
    def tokens(self, **page: Any) -> TokenList:
        return self.call("GET", "tokens", TokenList, query=page)

    def create_token(
        self,
        name: str,
        *,
        role: str,
        group: str | None = None,
        expires_in_s: int | None = None,
        hawk: bool = False,
        key: str | None = None,
        **binding: str | int | None,
    ) -> TokenInfo:
        """Create a token. Only this answer contains the token itself, and its Hawk credentials if asked for.

        ``binding``: which bots a bot-bootstrap token introduces: bot_pool, bot_group, bot_ids, uses.
        """
        bound = {name: value for name, value in binding.items() if value is not None}
        body: dict[str, Any] = {"name": name, "role": role, "group": group, "expires_in_s": expires_in_s, **bound}
        if hawk:
            body["hawk"] = True
        return self._post("tokens", TokenInfo, body, key)

    def revoke_token(self, token_id: str, *, key: str | None = None) -> Done:
        return self._delete(f"tokens/{segment(token_id)}", Done, key)


class WebhookCalls(Caller):
    def webhooks(self) -> WebhookList:
        return self.call("GET", "webhooks", WebhookList)

    def create_webhook(
        self, url: str, *, kinds: Sequence[str] = (), group: str | None = None, key: str | None = None
    ) -> WebhookInfo:
        """Send the messages of a resource group to a URL. Only this answer has the secret of the signatures."""
        return self._post("webhooks", WebhookInfo, {"url": url, "kinds": list(kinds), "group": group}, key)

    def delete_webhook(self, webhook_id: str, *, key: str | None = None) -> Done:
        return self._delete(f"webhooks/{segment(webhook_id)}", Done, key)

    def webhook_deliveries(self, webhook_id: str, **page: Any) -> DeliveryList:
        """One page, newest first. Filters: limit, cursor."""
        return self.call("GET", f"webhooks/{segment(webhook_id)}/deliveries", DeliveryList, query=page)

    def replay_delivery(self, webhook_id: str, delivery_id: str, *, key: str | None = None) -> Done:
        """Send a message to a webhook again."""
        return self._post(f"webhooks/{segment(webhook_id)}/deliveries/{segment(delivery_id)}/replay", Done, {}, key)
