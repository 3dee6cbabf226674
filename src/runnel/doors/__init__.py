"""Ways in: each door translates its protocol to the broker's verbs and back. Doors do not know each other."""
