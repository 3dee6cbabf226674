"""Where a message goes: filters."""
