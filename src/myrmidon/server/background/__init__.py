"""Periodic work of a server process: sweeps, heartbeats, chunked work."""
