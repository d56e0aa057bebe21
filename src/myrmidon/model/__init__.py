"""The nouns: frozen structs, enums and the rules that make them valid; no I/O, no clock, no randomness."""
