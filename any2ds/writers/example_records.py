"""Content of the records of tfrecord and arrayrecord shards, for programs without TensorFlow."""

from any2ds.writers.formats._example import parse as parse_example

__all__ = ["parse_example"]
