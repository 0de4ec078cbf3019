"""Steps of any2ds by themselves: what they make of a sample, and how much memory they say that it takes."""

from __future__ import annotations

from typing import Any

from any2ds.core.samples import Sample
from any2ds.transforms.chain import StepGroup


def through(sample: Sample, *steps: Any) -> list[Sample]:
    """What becomes of a sample in these steps, one after the other."""
    (made,) = StepGroup(steps).plan([sample]).run(lambda: None)
    return made


def memory_of(sample: Sample, *steps: Any) -> int:
    """Bytes that the first of these steps that processes a sample is going to take, by its own estimate."""
    return StepGroup(steps).plan([sample]).memory
