"""The price table: what machines, traffic and storage cost."""

from __future__ import annotations

from dataclasses import dataclass, fields

from any2ds.config.options import read_prices
from any2ds.core.errors import OptionError

_FILES_OF_SHARD = 3  # data, metadata and statistics


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in `currency`; a GB has 10^9 bytes. The defaults are list prices of large clouds."""

    currency: str = "USD"
    machine_hour: float = 0.2  # of one machine
    ingress_gb: float = 0.0  # of what arrives
    egress_gb: float = 0.09  # of the dataset, read once from another place
    storage_gb_month: float = 0.023
    requests_1000: float = 0.005  # of writing files to a store

    @classmethod
    def read(cls, path: str | None) -> Prices:
        """The built-in prices, with what the file at `path` has instead. Raises OptionError for other names or
        values."""
        known = {each.name: each.type for each in fields(cls)}
        own = read_prices(path) if path else {}
        for name, value in own.items():
            if name not in known:
                raise OptionError(f"price={path}: {name!r} is no price: there are {', '.join(known)}")
            if known[name] == "str" and not isinstance(value, str):
                raise OptionError(f"price={path}: {name} must be a text")
            if known[name] == "float" and (type(value) not in (int, float) or not value >= 0):
                raise OptionError(f"price={path}: {name} must be a number of at least 0")
        return cls(**own)

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
