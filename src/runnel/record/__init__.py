"""RecordBatch v2, the one format on the wire, on disk and between replicas. Drawn in docs/formats/record-batch.md."""
