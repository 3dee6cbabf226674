"""One partition in a cluster: appending, reading, and how far its replicas have come."""
