"""Hooks: functions that every bot of this server calls at certain points. The template: no hook does anything yet.

How to use this file
    Copy it to bot_config.py in the fleet configuration folder of the server and fill in the hooks that you need; remove
    the others or leave them. The server puts it into the bot zip as config/bot_config.py. Each change makes a new
    release, which is rolled out to the bots. A bot group in bots.toml can add a script with the same functions, which
    its bots receive with the handshake, without a release.

Rules
    - Python 3.8 or later, standard library only. Scripts written for Swarming can also import `os_utilities` and
      `platforms` from `api`.
    - A hook has 60 seconds; setup_bot and on_bot_startup have 10 minutes. A hook that takes longer is reported as
      bot_error and skipped until it returns.
    - An exception in a hook is reported as bot_error, and the bot goes on. get_dimensions and get_state quarantine the
      bot until they succeed again.
    - Hooks run in the bot's process while other threads work. Do not change global state such as the working directory
      or signal handlers.
    - Do not start processes that should outlive the hook: after each task the bot kills all its child processes.
    - A hook with an empty body, like those below, is never called and costs nothing.

If both this file and the group's script define a hook
    on_*                            both are called, this file's first
    on_before_poll, on_after_poll   only the script's is called
    get_*                           only the script's is called
    setup_bot                       only this file's is called

The argument `bot`
    bot.id, bot.server              bot id; URL of the server
    bot.dimensions, bot.state       copies of the current values; changing them has no effect
    bot.attributes                  {"dimensions": ..., "state": ..., "version": ...}
    bot.base_dir                    the bot's folder
    bot.config_dir                  folder for the administrator's files, /etc/myrmidon by default
    bot.bot_version                 digest of the running zip
    bot.swarming_bot_zip            path of the running zip
    bot.session_id                  changes at each start of the bot
    bot.post_event(kind, message)   send an event; kind is bot_log, bot_error, bot_rebooting or bot_shutdown
    bot.post_error(message)         send a bot_error; the same message at most once in ten minutes
    bot.host_reboot(message)        reboot the machine when no task runs; False if another bot runs on the machine
    bot.bot_restart(message)        restart the bot when no task runs
    bot.get_pseudo_rand(width)      a number from -width to width, always the same for this bot; spreads a fleet in time
All of these return at once; events are sent in the background.
"""


def setup_bot(bot):
    """Prepare the machine. Called once at each start, before all other hooks.

    Return False to request a reboot before the bot takes tasks. Not called if the environment variable
    SWARMING_EXTERNAL_BOT_SETUP is 1; `bot.zip setup` calls it without starting the bot.
    """


def get_settings(bot):
    """Return settings that differ from the defaults, as a dict, or None. Called at the start and after a handshake.

    They override the settings of the bot's group. All keys are optional; sizes are in bytes:

        {
            "free_partition": {
                "root": {"size": 1 << 30, "max_percent": 10, "min_percent": 6},
                "bot": {"size": 4 << 30, "max_percent": 15, "min_percent": 7, "wiggle": 250 << 20},
            },
            "caches": {"named": {"size": 1 << 40, "items": 50, "age_s": 21 * 86400}},
            "temp": {"items": 1024},
            "cost_usd_hour": 0.1,
        }

    An invalid value is reported and ignored.
    """


def get_authentication_headers(bot):
    """Return (headers, expiry): HTTP headers for a proxy in front of the server, or None.

    `headers` is a dict of strings, `expiry` the Unix time at which to call this hook again, or None for never. Headers
    that the bot sets itself, such as Authorization, are ignored.
    """


def on_bot_startup(bot):
    """The bot has started and has not contacted the server yet."""


def on_handshake(bot):
    """The server has accepted the bot; forced dimensions, settings and the group's script are in effect.

    Called after the first handshake and after the group's script has changed.
    """


def get_dimensions(bot):
    """Return the dimensions of the bot as a dict of lists of strings, or None to keep bot.dimensions.

    The result replaces all dimensions, so extend the present ones:

        return {**bot.dimensions, "floor": ["3"]}

    `id` cannot be changed, and dimensions forced by the bot's group win. An invalid result quarantines the bot. Called
    together with get_state: at the start, after a handshake, and about once a minute while the bot is idle.
    """


def get_state(bot):
    """Return the state of the bot as a dict that JSON can represent, or None to keep bot.state.

    The state is shown to people and not used to match tasks. A string under "quarantined" or "maintenance" is the
    reason why the bot gets no tasks:

        if not os.path.exists("/dev/ttyUSB0"):
            return {**bot.state, "quarantined": "the serial cable is missing"}

    An invalid result quarantines the bot.
    """


def on_before_poll(bot):
    """The bot is idle and is about to poll the server for work."""


def on_after_poll(bot, cmd):
    """The poll was answered. `cmd` is "run", "sleep", "update", "restart" or "terminate"."""


def on_bot_idle(bot, since_last_action):
    """A poll has returned no task. `since_last_action`: seconds since the bot last received one.

    The place for maintenance, for example a reboot from time to time:

        if since_last_action > 600 and bot.state["uptime"] > 12 * 3600:
            bot.host_reboot("twelve hours of uptime")
    """


def on_before_task(bot, bot_file, runner_cmd, runner_env):
    """A command is about to start.

    `runner_cmd` (a list) and `runner_env` (a dict) are the command line and the environment; change them in place.
    `bot_file` is the path of a JSON file that tasks can read as ${SWARMING_BOT_FILE}; write to it what they need to
    know. If the hook fails, the command runs unchanged.
    """


def on_after_task(bot, failure, internal_failure, task_dimensions, summary):
    """A command has ended, and its result is being reported.

    `failure`: it did not succeed. `internal_failure`: the bot could not run it to its end. `task_dimensions`: what the
    task has requested. `summary` has task_id (of this run), exit_code, duration, hard_timeout, io_timeout, killed and
    message. The next command waits for this hook.
    """


def on_bot_shutdown(bot):
    """The bot is about to end, restart, update or reboot the machine."""
