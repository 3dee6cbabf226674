"""The pure cores of replication under a seeded scheduler: no loop, no bytes, every invariant at every step."""
