"""A whole cluster on one machine: ZooKeeper and brokers as processes, on loopback. For development and tests."""
