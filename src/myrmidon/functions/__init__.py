"""Typed Python functions as tasks: their types, values and calls. Standard library only, Python 3.8."""
