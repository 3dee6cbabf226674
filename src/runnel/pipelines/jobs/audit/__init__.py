"""Proves that nothing is lost, doubled or out of order between two points."""
