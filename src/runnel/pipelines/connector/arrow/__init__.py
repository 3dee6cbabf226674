"""Record batches of the log as columns of Arrow."""
