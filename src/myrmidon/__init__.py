"""Myrmidon runs tasks and graphs of tasks on a legion of dumb, replaceable bots. STORY.md gives the reading order."""
