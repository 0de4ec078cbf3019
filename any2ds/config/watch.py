"""The options of reporters: which ones, and how often they report."""

from __future__ import annotations

from dataclasses import dataclass

from any2ds.config.declare import option
from any2ds.config.parsers import boolean, integer, number, one_of, optional, parts, text

_WANDB = "enable_wandb or reporters=wandb"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How it is watched"""

    log_interval: float = option("seconds between progress lines, and records", number(0.1), 10.0)
    log_format: str = option("of progress lines: text, or json", one_of("text", "json"), "text")
    report: bool = option("write report.html into the output folder", boolean, True)
    reporters: tuple[str, ...] | None = option(
        "further reporters: jsonl, prometheus, wandb", optional(parts("reporters")), None, task="Running"
    )
    metrics_port: int | None = option(
        "port for Prometheus, which it turns on; 0: any", optional(integer(0, 65535)), None
    )
    enable_wandb: bool = option(
        "report to Weights & Biases, like --reporters=wandb", boolean, False, task="Running", hints="wandb"
    )
    wandb_project: str = option("project in Weights & Biases", text, "any2ds", needs=_WANDB)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The reporters that are asked for besides the terminal, each once."""
        names = list(self.reporters or ())
        names += ["prometheus"] * (self.metrics_port is not None) + ["wandb"] * self.enable_wandb
        return tuple(name for name in dict.fromkeys(names) if name != "console")
