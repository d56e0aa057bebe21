"""The bot's installation: startup configuration, updates, exit codes."""
