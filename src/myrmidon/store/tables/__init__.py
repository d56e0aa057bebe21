"""The SQL that reads and changes rows: one file per table family."""
