"""any2ds without crash safety, to see what that costs: fetching and writing are any2ds's own.

Shards are written straight under their final names: no staging folder, no rename, no fsync; there is no `.any2ds/run`,
no lock, no fingerprint, no look at what is there already, and no clean-up. What a kill leaves cannot be told from what
is whole.

    python benchmarks/careless.py --url_list=urls.txt --output_folder=out --output_format=webdataset ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

from any2ds.config.options import Config
from any2ds.core import plugins
from any2ds.core.layout import Layout
from any2ds.core.reports import ShardReport
from any2ds.readers import plan
from any2ds.readers.sources import Source
from any2ds.storage.folders import OutputFolder
from any2ds.worker import worker


class CarelessFolder(OutputFolder):
    """Files come into being under their final names."""

    def publish(self, staged: Path, name: str) -> None:
        if staged.name != name:  # metadata beside a tar
            staged.rename(staged.with_name(name))

    def publish_all(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            self.publish(staged, name)

    def write(self, name: str, data: bytes) -> None:
        file = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(file, data)
        os.close(file)


@contextmanager
def _no_staging(*_: Any) -> Iterator[Path]:
    yield Path(os.environ[_OUTPUT])


_OUTPUT = "ANY2DS_CARELESS_OUTPUT"  # how the worker processes know the folder

# Here and, because this module is imported where the worker is unpickled, in the worker processes.
worker.staging = _no_staging
worker.OutputFolder = CarelessFolder
if hasattr(plan, "urls_sha256"):
    plan.urls_sha256 = lambda *_: ""


class CarelessWorker(worker.ShardWorker):
    """The same worker; its name makes worker processes import this module."""


def main(options: Mapping[str, str]) -> int:
    config = Config.from_options(options)
    os.environ[_OUTPUT] = config.output.output_folder
    Path(config.output.output_folder).mkdir(parents=True)
    names = Layout(config.output.number_sample_per_shard, config.output.oom_shard_count)
    source = Source.of(config)
    jobs = plan.plan(plan.cuts(source.batches(), names.rows_per_shard), source.schema)
    distributor = plugins.load("distributors", config.run.distributor)(config.run)
    rows = sum(
        event.count
        for event in distributor.map(CarelessWorker(config.output, config.fetch), jobs)
        if isinstance(event, ShardReport)
    )
    print(f"{rows} rows")
    return 0


if __name__ == "__main__":
    import careless  # under its own name, so that the worker can be pickled

    sys.exit(careless.main(dict(argument[2:].split("=", 1) for argument in sys.argv[1:])))
