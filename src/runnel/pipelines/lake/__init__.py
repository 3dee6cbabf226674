"""Delta tables that keep what topics held: written by Spark's tasks, committed once for each batch, read by anybody."""
