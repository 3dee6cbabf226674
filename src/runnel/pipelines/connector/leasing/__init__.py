"""Queues as streams: the lease is the offset."""
