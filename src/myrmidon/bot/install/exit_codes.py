"""Exit codes of the bot's processes.

The supervisor passes OK and SUPERSEDED on; service managers must not restart a bot that ended with STARTUP_ERROR or
SUPERSEDED (contrib/systemd).
"""

from __future__ import annotations

OK = 0

# `bot.zip start`
STARTUP_ERROR = 2
"""The folder, the options or the platform cannot be used; a restart does not help."""
FOLDER_IN_USE = 3
"""Another bot holds the lock of the folder."""
SUPERSEDED = 4
"""A newer session of the same bot id exists on the server."""

# A worker, as seen by its supervisor
RESTART = 75
"""Start the zip named in next.json if there is one, else the same zip again."""
UNKILLABLE_COMMAND = 70
"""A command survived SIGKILL; the supervisor kills what is left and starts a new worker."""
ORPHANED = 71
"""The supervisor ended before the worker could register for its death signal."""

# `bot.zip self-test`
SELF_TEST_DISK_FULL = 3
"""The test could not run because the disk is full. Says nothing about the zip."""
SELF_TEST_SERVER_UNREACHABLE = 4
"""Everything works except that the server did not answer. The server may be at fault."""
