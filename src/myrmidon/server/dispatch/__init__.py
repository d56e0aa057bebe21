"""Assigns tasks to bots: claims by polling and direct assignment at submit."""
