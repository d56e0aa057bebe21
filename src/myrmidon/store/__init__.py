"""The only package with SQL: every statement is constant text beside the small function that runs it."""
