"""History in Delta tables."""
