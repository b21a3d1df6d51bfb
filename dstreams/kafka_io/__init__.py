"""Kafka as source and sink of batches: what knows brokers and RDDs, and no streams."""
