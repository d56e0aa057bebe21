"""A constant of another module."""

DEPTH: int = 4
