"""Authenticates callers and checks what they may do."""
