"""The web page: its files, logging in to it, and the addresses that Swarming's clients print."""
