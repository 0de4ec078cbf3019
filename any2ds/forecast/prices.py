"""The price table: what machines, traffic and storage cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from any2ds.config.options import read_prices
from any2ds.core.errors import OptionError

_FILES_OF_SHARD = 3  # data, metadata and statistics
_TABLE = Path(__file__).with_name("prices.json")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in `currency`; a GB has 10^9 bytes."""

    currency: str
    machine_hour: float  # of one machine
    ingress_gb: float  # of what arrives
    egress_gb: float  # of the dataset, read once from another place
    storage_gb_month: float
    requests_1000: float  # of writing files to a store

    @classmethod
    def read(cls, path: str | None) -> Prices:
        """The built-in table, with what the file at `path` has instead. Raises OptionError for others."""
        found: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
        given = read_prices(path) if path else {}
        for name, value in given.items():
            if name not in found:
                raise OptionError(f"price={path}: {name!r} is no price: there are {', '.join(found)}")
            is_price = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            if not (isinstance(value, str) if name == "currency" else is_price):
                raise OptionError(
                    f"price={path}: {name} must be {'a text' if name == 'currency' else 'a number of at least 0'}"
                )
        return cls(**{**found, **given})

    def costs(self, hours: float, received: float, stored: float, shards: int) -> Costs:
        """Of a run with so many `hours` of all machines together, and bytes `received` and `stored`."""
        return Costs(
            compute=hours * self.machine_hour,
            ingress=received / 1e9 * self.ingress_gb,
            requests=_FILES_OF_SHARD * shards / 1000 * self.requests_1000,
            storage_month=stored / 1e9 * self.storage_gb_month,
            egress=stored / 1e9 * self.egress_gb,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run costs, in the currency of the table."""

    compute: float
    ingress: float
    requests: float
    storage_month: float  # of the dataset, each month
    egress: float  # of reading it once from elsewhere

    @property
    def run(self) -> float:
        """Of making the dataset."""
        return self.compute + self.ingress + self.requests

    def to_json(self) -> Mapping[str, float]:
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "run": self.run}
