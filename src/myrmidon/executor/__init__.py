"""The process that runs functions on a bot. Standard library only, Python 3.8."""
