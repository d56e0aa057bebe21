"""Swarming's v1 HTTP API on top of the same core."""
