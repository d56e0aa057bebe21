"""The context: how clients and bots reach the core over HTTP."""
