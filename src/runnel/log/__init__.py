"""One partition on one disk: segments, indexes, recovery, retention, compaction, producer state."""
