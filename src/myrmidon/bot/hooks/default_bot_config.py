"""The hooks of a bot: what it calls at the turning points of its life. This file does nothing; change what you need.

The server puts this file into every bot's zip as config/bot_config.py. Whoever edits it makes a new release, which
the bots take one after the other. A bot group may add a script of its own, with the same hooks, that its bots get
when they shake hands. Then, of the hooks named on_*, both are called, this file's first; of on_before_poll and
on_after_poll, and of those named get_*, only the script's, if it has one; setup_bot is always this file's.

A hook that raises is told to the server as a bot_error, and the bot goes on. A hook that takes longer than a minute
(ten for setup_bot and on_bot_startup) is left behind, told, and skipped until it comes back. A hook that only has
a text like those below costs nothing.

`bot` has: id, dimensions, state, server, base_dir, config_dir, bot_version, session_id, swarming_bot_zip, attributes,
post_event(kind, message), post_error(message), host_reboot(message), bot_restart(message), get_pseudo_rand(width).

Standard library only, Python 3.8 and later. Never start anything here that should live on while tasks run: what is
found below the bot after a task is killed.
"""


def get_dimensions(bot):
    """The dimensions to offer, as a dict of lists of texts; None leaves those that were found, bot.dimensions.

    What is returned replaces all of them, so start from dict(bot.dimensions). `id` cannot be changed. A result that
    makes no sense quarantines the bot until it does. Called about once a minute while the bot is idle.
    """


def get_state(bot):
    """The state to show, as a dict that JSON can hold; None leaves what was found, bot.state.

    A text under `quarantined` or `maintenance` keeps tasks away from the bot, with that reason. A result that makes
    no sense quarantines the bot. Called together with get_dimensions.
    """


def get_settings(bot):
    """Limits of this bot that differ from the defaults, as a dict; None for none.

    {"free_partition": {"root": {"size": bytes, "max_percent": 10, "min_percent": 6},
                        "bot": {"size": bytes, "max_percent": 15, "min_percent": 7, "wiggle": bytes}},
     "caches": {"named": {"size": bytes, "items": 50, "age_s": seconds}}, "temp": {"items": 1024}, "cost_usd_hour": 0.1}
    """


def get_authentication_headers(bot):
    """(headers, expiry) to send with every call, for a proxy in front of the server; None for none.

    headers is a dict of texts, expiry a Unix time at which to ask again, or 0 or None for never. Authorization is the
    bot's own and is left out.
    """


def on_bot_startup(bot):
    """The bot has started and has not spoken to the server yet."""


def on_handshake(bot):
    """The server has greeted the bot: forced dimensions, settings and the group's script are known now."""


def on_before_poll(bot):
    """The bot is idle and is about to ask for work."""


def on_after_poll(bot, cmd):
    """The server has answered: cmd is run, sleep, update, restart or terminate."""


def on_bot_idle(bot, since_last_action):
    """The server had nothing to do; for so many seconds nothing has been done. A place for upkeep, or for
    bot.host_reboot() once in a while.
    """


def on_before_task(bot, bot_file, runner_cmd, runner_env):
    """A command is about to start. runner_cmd (a list) and runner_env (a dict) may be changed in place.

    What is written to bot_file, as JSON, is read by tasks that name ${SWARMING_BOT_FILE}.
    """


def on_after_task(bot, failure, internal_failure, task_dimensions, summary):
    """A command has ended. failure: it ended badly; internal_failure: the bot could not run it to its end.

    summary has task_id, exit_code, duration, hard_timeout, io_timeout, killed.
    """


def on_bot_shutdown(bot):
    """The bot is about to end, to restart, to update or to reboot."""


def setup_bot(bot):
    """Make the machine ready, once per start, before anything else. False asks for a reboot first.

    Skipped when SWARMING_EXTERNAL_BOT_SETUP is 1.
    """
