"""What exists and who leads: the coordination seam, the image of the cluster, and the controller's decisions."""
