"""The price table: what machines, traffic and storage cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
        table: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
        for name, value in (read_prices(path) if path else {}).items():
            if name not in table:
                raise OptionError(f"price={path}: {name!r} is no price: there are {', '.join(table)}")
            is_price = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            if not (isinstance(value, str) if name == "currency" else is_price):
                kind = "a text" if name == "currency" else "a number of at least 0"
                raise OptionError(f"price={path}: {name} must be {kind}")
            table[name] = value
        return cls(**table)

    def costs(self, hours: float, received: float, stored: float, shards: int) -> dict[str, float]:
        """Costs of a run with so many `hours` of all machines together, and bytes `received` and `stored`: of making
        the dataset (`run`), of keeping it for a month, and of reading it once from elsewhere."""
        costs = {
            "compute": hours * self.machine_hour,
            "ingress": received / 1e9 * self.ingress_gb,
            "requests": _FILES_OF_SHARD * shards / 1000 * self.requests_1000,
        }
        month, egress = stored / 1e9 * self.storage_gb_month, stored / 1e9 * self.egress_gb
        return {**costs, "run": sum(costs.values()), "storage_month": month, "egress": egress}
