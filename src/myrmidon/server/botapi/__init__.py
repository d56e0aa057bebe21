"""The HTTP API that bots use: handshake, exchange, log upload."""
