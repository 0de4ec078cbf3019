"""What makes samples of what was read, one object for all shards that are opened with the same fields; and a look at
whose samples these are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from any2ds.core.errors import DamagedShard

if TYPE_CHECKING:
    from any2ds.writers.contract import Fields, ShardData

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


def check_key(data: ShardData, key: str) -> None:
    """Raises DamagedShard if a sample of a data file has the key of another shard's."""
    if not key.startswith(data.key_start):
        raise DamagedShard(f"it has the sample {key!r}, which is none of this shard: another shard lies in its place")
