"""Consuming by message instead of by offset: lease, settle, retry, dead letters; and what is due later."""
