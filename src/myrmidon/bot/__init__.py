"""The bot: claims tasks from a server, runs their commands, reports results. Standard library only, Python 3.8+."""
