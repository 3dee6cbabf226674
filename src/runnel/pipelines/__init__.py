"""The data pipeline on Spark: the connector, the lake, and the jobs. A client of the cluster like any other."""
