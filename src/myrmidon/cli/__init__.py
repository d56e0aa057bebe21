"""The command line. main.py lists the commands and names the file of each."""
