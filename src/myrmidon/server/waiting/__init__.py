"""Long polls in memory: connected bots, waiting callers and log throttling."""
