"""examples/many_rows_on_spark.ipynb, as it stands."""

import re
from pathlib import Path

from tests.support.notebooks import run_as_script


def test_spark_makes_the_dataset_and_reads_it(java: str, tmp_path: Path) -> None:
    for _ in range(2):  # in the same folder
        printed = run_as_script("many_rows_on_spark.ipynb", tmp_path)
        counts = dict(re.findall(r"\| *(success|failed_to_download)\| *(\d+)\|", printed))
        assert sum(map(int, counts.values())) == 236
        assert int(counts["success"]) > 190
    assert (tmp_path / "spark_dataset" / "00005.parquet").exists()
