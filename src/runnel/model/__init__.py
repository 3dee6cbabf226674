"""Values that every other part shares. Imports nothing of Runnel."""
