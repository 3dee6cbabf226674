"""Topics and queues as tables and streams of Spark, and back."""
