"""The bot's command line: `python bot.zip start`, or `python -m myrmidon.bot start` from a source tree.

Imports are inside the functions: an import error in one module must not break the other commands, and `self-test` must
be able to report it.
"""

from __future__ import annotations

import sys

USAGE = """usage: bot.zip COMMAND
  start --dir DIR [--server URL]... [--token-file FILE] [--bot-id ID] [--suffix N] [--pool POOL]
        [--dimension KEY=VALUE]... [--isolation auto|off] [--task-user USER] [--hide DIR]... [--pass-env NAME]...
        [--slots N] [--library-dir DIR]... [--environments DIR]
              run the bot in the foreground; options are stored in DIR (default $MYRMIDON_BOT_DIR or ~/myrmidon-bot);
              FILE must be readable by its owner only, and is deleted;
              --server may name several addresses of the server, the preferred one first;
              --suffix is for several bots on one machine: the bot id becomes ID--N;
              --slots is how many functions run at a time (default: auto, the number of processors; 0: none);
              --library-dir has shared libraries whose functions tasks may call;
              --environments is for environments of functions, which several bots can share
  self-test [--server URL]
              test this zip; exit code 0 if it works and the server, if given, answers
  version     print the digest of this zip
  config      print the configuration that the server stored in this zip
  server      print the URL of the server that `start` would connect to
  attributes  print the dimensions of this machine
  setup       call the hook setup_bot and exit; takes the options of start
  shell --dir DIR
              open a Python prompt inside the bot that runs in DIR
  reboot      reboot the machine, unless a bot runs on it
inside a task with `api: job`:
  job extend FILE     add the tasks of a graph document to the task's own job; - reads standard input
  job annotate FILE   show a Markdown text with the task
  job meta get [NAME] | job meta set NAME VALUE | job meta delete NAME
                      small texts that the tasks of the job share
environment: MYRMIDON_BOT_DIR MYRMIDON_SERVER MYRMIDON_BOT_ID MYRMIDON_BOT_ISOLATION MYRMIDON_BOT_ENVIRONMENTS
"""


def main(argv: list[str]) -> int:
    if sys.version_info < (3, 8):
        sys.stderr.write("myrmidon bot: Python 3.8 or later is required\n")
        return 2
    command, rest = (argv[0], argv[1:]) if argv else ("start", [])
    if command in ("start", "start_bot", "start_slave"):  # the last two are Swarming's names
        _hide()
        return _start(rest)
    if command == "worker":  # internal: started by the supervisor
        _hide()
        from myrmidon.bot import worker

        return worker.main(rest)
    if command == "executor":  # internal: started by the worker, to run functions
        return _run_functions(rest)
    if command in ("self-test", "is_fine"):  # is_fine is Swarming's name
        from myrmidon.bot import self_test

        return self_test.check(rest)
    if command == "version":
        from myrmidon.bot.install import updater

        sys.stdout.write(updater.own_version() + "\n")
        return 0
    if command == "job":
        from myrmidon.bot import job_commands

        return job_commands.main(rest)
    if command in ("config", "server", "attributes", "setup", "shell", "reboot"):
        return _run_admin_command(command, rest)
    sys.stderr.write(USAGE)
    return 0 if command in ("help", "--help", "-h") else 2


def _hide() -> None:
    """Hide this process from tasks before anything else is done: its environment may contain a token."""
    from myrmidon.bot.system import processes

    processes.hide()


def _run_functions(rest: list[str]) -> int:
    """Run functions. What they leave behind stays below this process, so that it is killed with it."""
    from myrmidon.bot.system import processes
    from myrmidon.executor import main as executor

    processes.become_reaper()
    return executor.main(rest)


def _start(rest: list[str]) -> int:
    from myrmidon.bot import supervisor
    from myrmidon.bot.install import exit_codes, startup_config
    from myrmidon.bot.system import platforms, processes

    processes.open_standard_streams()
    try:
        platforms.check_supported()
        folder = startup_config.prepare(rest)
        if not startup_config.has_access(folder):
            from myrmidon.bot import admin_commands

            admin_commands.check_admission(folder)
    except (startup_config.StartupError, platforms.UnsupportedPlatform) as error:
        sys.stderr.write(f"myrmidon bot: {error}\n")
        return exit_codes.STARTUP_ERROR
    return supervisor.Supervisor(folder).run()


def _run_admin_command(command: str, rest: list[str]) -> int:
    from myrmidon.bot import admin_commands
    from myrmidon.bot.install import exit_codes, startup_config

    function = {
        "config": admin_commands.show_config,
        "server": admin_commands.show_server,
        "attributes": admin_commands.show_attributes,
        "setup": admin_commands.set_up,
        "shell": admin_commands.shell,
        "reboot": admin_commands.reboot,
    }[command]
    try:
        return function(rest)
    except startup_config.StartupError as error:
        sys.stderr.write(f"myrmidon bot: {error}\n")
        return exit_codes.STARTUP_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
