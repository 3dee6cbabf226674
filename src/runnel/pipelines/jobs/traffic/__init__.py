"""Rates, sizes, latency, hot keys, skew and lag."""
