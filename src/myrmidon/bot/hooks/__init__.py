"""Loads bot_config.py and gives its hooks an API."""
