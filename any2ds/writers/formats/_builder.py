"""What makes samples of what was read: one object for all shards that are opened with the same fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from any2ds.writers.contract import Fields

B = TypeVar("B", bound="Builder")


class Builder:
    """The base of those of each kind of format."""

    _last: ClassVar[Any] = None  # of each subclass

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    @classmethod
    def of(cls: type[B], fields: Fields) -> B:
        """That of the shard before, if it has the same fields: to make one takes longer than to read a sample."""
        found: B | None = cls._last
        if found is None or found._fields is not fields:
            found = cls._last = cls(fields)
        return found
