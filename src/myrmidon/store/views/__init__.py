"""Read-only queries over several tables, for lists, searches, histories and metrics."""
