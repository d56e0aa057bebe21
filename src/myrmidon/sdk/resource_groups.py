"""Resource groups: the owners of jobs, tasks, files and shared values, as ``client.resource_groups``."""

from __future__ import annotations

from collections.abc import Iterator

from myrmidon.sdk.api.calls import Api
from myrmidon.wire.resource_groups import GroupDetails, GroupInfo


class ResourceGroups:
    """Creates, lists and deletes resource groups. All but listing and showing needs an administrator's token."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(self, name: str) -> GroupInfo:
        """Create a resource group. Raises Conflict if there is one of this name."""
        return self._api.create_group(name)

    def list(self) -> Iterator[GroupInfo]:
        """All resource groups that the token gives access to, by name."""
        cursor: str | None = None
        while True:
            page = self._api.groups(cursor=cursor)
            yield from page.groups
            cursor = page.cursor
            if cursor is None:
                return

    def show(self, name: str) -> GroupDetails:
        """A resource group and the numbers of what it owns."""
        return self._api.group(name)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a resource group with its jobs, tasks, files and references to shared values.

        Its tasks must have ended. With ``force`` they are cancelled, and the group is gone when the last one has ended.
        """
        self._api.delete_group(name, force=force)
