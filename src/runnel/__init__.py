"""Runnel: a distributed message queue."""

__version__ = "0.1.0"
