"""Relays: deliver the events of the outbox to systems outside of Myrmidon."""
