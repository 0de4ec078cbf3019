"""What a record of a tfrecord or arrayrecord shard says, for whoever reads them without TensorFlow."""

from any2ds.writers.formats._example import parse as parse_example

__all__ = ["parse_example"]
