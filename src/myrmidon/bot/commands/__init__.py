"""Runs tasks: queue, command, working directory, output."""
