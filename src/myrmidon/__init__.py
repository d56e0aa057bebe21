"""Myrmidon runs tasks and graphs of tasks on a fleet of bots. ARCHITECTURE.md describes the packages."""
