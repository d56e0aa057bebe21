"""Bot releases, pool policy, configuration sync and cache hints."""
