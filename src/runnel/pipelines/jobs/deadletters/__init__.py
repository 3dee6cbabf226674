"""Dead letters: reported by reason, repaired, and sent back."""
