"""Starts bots on this machine: the zip from the server, and a token that introduces this one bot.

The token reaches the bot in a file that the bot deletes, never in its environment or on its command line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from myrmidon.cli.context import CliContext
from myrmidon.sdk import server_discovery
from myrmidon.sdk.errors import NotAllowed

_TOKEN_S: Final = 3600
"""The bot uses its token within seconds, unless the server cannot be reached."""


def bot_command(
    cli: CliContext,
    folder: Path,
    *,
    pool: str | None = None,
    bot_id: str | None = None,
    dimensions: Sequence[tuple[str, str]] = (),
    slots: int | None = None,
) -> list[str]:
    """The command that starts a bot in a folder, from the zip that the server serves, which is downloaded here.

    A bot whose credential is still valid needs no token.
    """
    stored = _stored_options(folder)
    bot_id = bot_id or os.environ.get("SWARMING_BOT_ID") or stored.get("bot_id") or _default_id()
    first_zip = folder.with_name(f"{folder.name}.first.zip")
    first_zip.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(first_zip), "start", "--dir", str(folder), "--server", cli.endpoint.addresses]
    words += ["--bot-id", bot_id, *(["--pool", pool] if pool else [])]
    words += ["--slots", str(slots)] if slots is not None else []
    words += [word for private in server_discovery.private_folders() for word in ("--hide", str(private))]
    zipped = _zip_with_credential(cli, folder)
    first_zip.write_bytes(zipped or cli.client.bot_zip())
    if zipped is None:
        pools = [value for key, value in dimensions if key == "pool"]
        token = _new_token(cli, bot_id, (pools or [pool or stored.get("pool") or "default"])[-1])
        if token:
            token_file = folder.with_name(f"{folder.name}.token")
            server_discovery.write_private(token_file, token)
            words += ["--token-file", str(token_file)]
    return words + [word for key, value in dimensions for word in ("--dimension", f"{key}={value}")]


def bot_environment() -> dict[str, str]:
    """The environment of a bot: without this program's MYRMIDON_ variables, which may hold a token."""
    kept = ("MYRMIDON_BOT_ISOLATION",)
    return {name: value for name, value in os.environ.items() if not name.startswith("MYRMIDON_") or name in kept}


def _zip_with_credential(cli: CliContext, folder: Path) -> bytes | None:
    """The zip, downloaded with the bot's own credential; None if it has none that is valid."""
    try:
        credential = (folder / "credential").read_text().strip()
        return CliContext(cli.endpoint.addresses, credential, as_json=False).client.bot_zip() if credential else None
    except (OSError, NotAllowed):
        return None


def _new_token(cli: CliContext, bot_id: str, pool: str) -> str | None:
    """A token that introduces this bot, once. A caller that may not create one passes its own on."""
    try:
        created = cli.client.create_token(
            f"bot {bot_id}"[:256],
            role="bot-bootstrap",
            bot_ids=bot_id,
            bot_pool=pool,
            uses=1,
            expires_in_s=_TOKEN_S,
        )
    except NotAllowed:
        return cli.endpoint.token  # a bootstrap token, or none where the server admits the network
    return str(created.token)


def _stored_options(folder: Path) -> dict[str, Any]:
    try:
        stored = json.loads((folder / "bot.json").read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _default_id() -> str:
    from myrmidon.bot.system.dimensions import default_id

    return default_id()
