"""The `Estimate`: what a list holds, what its sample became, and what runs over the whole would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from any2ds.core import text
from any2ds.core.failures import SUCCESS
from any2ds.core.terminal.notebook import html
from any2ds.forecast.prices import Prices
from any2ds.forecast.screen import markdown, parts
from any2ds.forecast.transfers import distribution

if TYPE_CHECKING:
    from any2ds.forecast.advice import Advice
    from any2ds.forecast.model import Model, Prediction


@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """What `estimate` returns. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    model: Model
    bandwidth: int  # bits per second, of each machine
    prices: Prices
    predictions: Sequence[Prediction]  # one for each number of machines
    advice: Sequence[Advice]
    remarks: Sequence[str] = ()  # what makes it less certain

    def __repr__(self) -> str:
        model = self.model
        runs = ", ".join(
            f"{text.duration(each.seconds.value)} on {each.machines:,} machine{'s' * (each.machines > 1)}"
            for each in self.predictions
        )
        stored = f"{model.success.value:.0%} of {text.rows(model.survey.rows)} stored"
        return f"<Estimate {stored}, {text.size(model.stored_bytes)}: {runs or 'nothing to do'}>"

    def _repr_html_(self) -> str:
        return html(parts(self))

    def to_markdown(self) -> str:
        """The same as on the screen, for a pull request or a wiki."""
        return markdown(self)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        model = self.model
        survey, sample = model.survey, model.sample
        good = [each for each in sample.transfers if each.code == SUCCESS]
        return {
            "list": {
                "rows": survey.rows,
                "is_exact": survey.is_exact,
                "rows_read": survey.read,
                "bad_rows": survey.bad,
                "schemes": dict(survey.schemes),
                "distinct_urls": survey.distinct,
                "duplicates": survey.duplicates,
                "duplicates_in_shards": survey.duplicates_in_shards,
                "hosts": survey.hosts.count,
                "largest_hosts": survey.hosts.top(len(survey.hosts.largest)),
                "error": survey.error or None,
            },
            "sample": {
                "folder": sample.folder,
                "rows": len(sample.transfers),
                "success": model.success.to_json(),
                "outcomes": dict(model.shares),
                "seconds": _quantiles([each.seconds for each in good]),
                "sizes": _quantiles([each.size for each in good]),
                "received_per_row": sample.received,
                "stored_per_row": sample.stored_size,
                "cpu_per_row": model.cpu[1],
                "start_up": sample.start_up,
            },
            "dataset": {
                "stored_rows": model.stored.to_json(),
                "stored_bytes": model.stored_bytes,
                "received_bytes": model.received_bytes,
                "shards": model.shards,
                "shard_bytes": model.stored_bytes / max(1, model.shards),
            },
            "bandwidth": self.bandwidth,
            "prices": self.prices.to_json(),
            "predictions": [each.to_json() for each in self.predictions],
            "advice": [{"option": each.option, "value": each.value, "reason": each.reason} for each in self.advice],
            "remarks": list(self.remarks),
        }


def _quantiles(values: Sequence[float]) -> Mapping[str, float]:
    found = distribution(values)
    return {
        "smallest": found.smallest,
        "first_quartile": found.first_quartile,
        "median": found.median,
        "third_quartile": found.third_quartile,
        "largest": found.largest,
    }
