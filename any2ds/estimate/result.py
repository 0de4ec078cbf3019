"""The `Estimate`: what a list holds, what its sample became, and what runs over the whole would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from any2ds.core import text
from any2ds.core.terminal.notebook import html
from any2ds.estimate.screen import parts, quantiles

if TYPE_CHECKING:
    from any2ds.estimate.advice import Advice
    from any2ds.estimate.model import Model, Prediction

_LIST = ("rows", "is_exact", "read", "bad", "distinct", "duplicates")


@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """The result of `estimate`. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    model: Model
    bandwidth: int  # bits per second, of each machine
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

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        model = self.model
        survey, sample = model.survey, model.sample
        return {
            "list": {
                **{name: getattr(survey, name) for name in _LIST},
                "error": survey.error or None,
                "hosts": len(survey.hosts),
                "largest_hosts": survey.largest_hosts(20),
            },
            "sample": {
                "folder": sample.folder,
                "rows": len(sample.rows),
                "success": asdict(model.success),
                "outcomes": dict(model.shares),
                "seconds": quantiles(sample.latencies),
                "sizes": quantiles(sample.sizes),
                "received_per_file": sample.received,
                "stored_per_row": sample.stored_size,
                "cpu_per_file": model.cpu[1],
                "start_up": sample.start_up,
            },
            "dataset": {
                "stored_rows": asdict(model.stored),
                "stored_bytes": model.stored_bytes,
                "received_bytes": model.received_bytes,
                "shards": model.shards,
                "shard_bytes": model.stored_bytes / model.shards,
            },
            "bandwidth": self.bandwidth,
            "predictions": [asdict(each) for each in self.predictions],
            "advice": [asdict(each) for each in self.advice],
            "remarks": list(self.remarks),
        }
