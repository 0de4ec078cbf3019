"""Which part of a whole somebody has, such as of what a host allows."""

from __future__ import annotations

SharePath = tuple[tuple[int, int], ...]
"""Pairs (number from 0, of how many parts): a part of the whole, a part of that part, and so on; none: all of it."""
