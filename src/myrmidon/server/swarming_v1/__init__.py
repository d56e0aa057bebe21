"""Swarming's HTTP API v1, for existing clients."""
