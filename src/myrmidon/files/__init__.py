"""A local folder with files that are named by the digest of their content."""
