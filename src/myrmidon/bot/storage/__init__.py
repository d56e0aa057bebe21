"""Files of undelivered data in the bot's folder: finished results and log output."""
