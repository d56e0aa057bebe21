"""Connections, transactions, group commit and migrations on SQLite, PostgreSQL and MariaDB."""
