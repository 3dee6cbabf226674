"""Where a message goes: filters (`filter.compile`), and what they see of a message (`message`)."""
