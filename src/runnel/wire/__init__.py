"""Protocols as functions from bytes to values and back. Nothing here knows a socket or a clock."""
