"""What a bot keeps on disk: finished results and unsent log output."""
