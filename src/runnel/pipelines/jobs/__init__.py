"""What `runnel pipeline NAME` runs."""
