"""The door: how clients and bots reach the core over HTTP."""
