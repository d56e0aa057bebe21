"""Benchmarks: what the core costs, measured against what it cannot do without."""
