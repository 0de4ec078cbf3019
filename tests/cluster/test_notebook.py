"""examples/many_rows_on_spark.ipynb, as it stands."""

from pathlib import Path

from tests.support.notebooks import run_as_script


def test_spark_makes_the_dataset_and_reads_it(tmp_path: Path) -> None:
    printed = run_as_script("many_rows_on_spark.ipynb", tmp_path)
    assert "| success|  209|" in printed
    assert (tmp_path / "spark_dataset" / "00005.parquet").exists()
