"""Data types of the system and the rules that make them valid: no I/O, no clock, no randomness."""
