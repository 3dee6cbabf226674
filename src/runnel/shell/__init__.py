"""The real bodies of the seams: clock, chance, disk. The only place that touches the machine."""
