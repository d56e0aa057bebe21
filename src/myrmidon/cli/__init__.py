"""The hand: the command line, one file per noun."""
