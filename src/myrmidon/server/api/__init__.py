"""The native HTTP API under /api/v1."""
