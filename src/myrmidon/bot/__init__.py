"""The soldier: takes orders from a server, runs commands, reports. Standard library only, Python 3.8 and later."""
