"""The connection to the server: HTTP client, session loop, exchanges, uploads."""
