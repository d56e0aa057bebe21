"""The caller: talks to a server, over HTTP only."""
