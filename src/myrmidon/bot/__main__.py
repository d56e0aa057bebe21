"""The bot's command line: `python bot.zip start`, or `python -m myrmidon.bot start` from a source tree.

Everything is imported late: whatever else is broken in a zip, `is_fine` must be able to say so, and a bad import in
one command must not take away the others.
"""

from __future__ import annotations

import sys

USAGE = """usage: bot.zip COMMAND
  start --dir DIR [--server URL] [--token-file FILE] [--bot-id ID] [--suffix N] [--pool POOL]
        [--dimension KEY=VALUE]...
              runs the bot in the foreground; settings are kept in DIR (default $MYRMIDON_BOT_DIR or ~/myrmidon-bot);
              with --suffix it is one of several of this machine, and its id is ID--N
  is_fine [--server URL]
              tests this zip; exit code 0 if it is fit to run, and the server answers it
  version     the digest of this zip
  config      what the server has put into this zip
  server      the server that it would call
  attributes  the dimensions that this machine would offer
  setup       only calls the hook setup_bot, with the flags of start
  shell --dir DIR
              a Python prompt inside the bot that runs there
  reboot      restarts the machine, unless a bot lives on it
environment: MYRMIDON_BOT_DIR MYRMIDON_SERVER MYRMIDON_BOT_TOKEN MYRMIDON_BOT_ID
"""


def main(argv: list[str]) -> int:
    if sys.version_info < (3, 8):
        sys.stderr.write("myrmidon bot: Python 3.8 or later is needed\n")
        return 2
    command, rest = (argv[0], argv[1:]) if argv else ("start", [])
    if command in ("start", "start_bot", "start_slave"):  # the last two are Swarming's words
        return _start(rest)
    if command == "soldier":
        from myrmidon.bot import worker

        return worker.serve(rest)
    if command == "is_fine":
        from myrmidon.bot import self_test

        return self_test.check(rest)
    if command == "version":
        from myrmidon.bot.install import updater

        sys.stdout.write(updater.own_version() + "\n")
        return 0
    if command in ("config", "server", "attributes", "setup", "shell", "reboot"):
        return _use_tool(command, rest)
    sys.stderr.write(USAGE)
    return 0 if command in ("help", "--help", "-h") else 2


def _start(rest: list[str]) -> int:
    from myrmidon.bot import supervisor
    from myrmidon.bot.install import startup_config
    from myrmidon.bot.system import host

    host.have_streams()
    try:
        host.check_fit()
        folder = startup_config.prepare(rest)
    except (startup_config.Unusable, host.Unfit) as error:
        sys.stderr.write(f"myrmidon bot: {error}\n")
        return 2
    return supervisor.Keeper(folder).keep()


def _use_tool(command: str, rest: list[str]) -> int:
    from myrmidon.bot import admin_commands
    from myrmidon.bot.install import startup_config

    tool = {
        "config": admin_commands.show_config,
        "server": admin_commands.show_server,
        "attributes": admin_commands.show_attributes,
        "setup": admin_commands.set_up,
        "shell": admin_commands.visit,
        "reboot": admin_commands.reboot,
    }[command]
    try:
        return tool(rest)
    except startup_config.Unusable as error:
        sys.stderr.write(f"myrmidon bot: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
