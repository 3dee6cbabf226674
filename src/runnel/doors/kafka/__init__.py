"""The Kafka door: one file for each API, each a translation."""
