"""Makes a dataset on a Spark cluster, with a session of your own.

    python examples/pyspark_example.py                                          # on this machine, from a small server
    python examples/pyspark_example.py urls.parquet s3://bucket/dataset --master=spark://10.0.0.1:7077
    spark-submit --master=spark://10.0.0.1:7077 examples/pyspark_example.py urls.parquet s3://bucket/dataset

The executors' Python needs any2ds: distributed_any2ds_tutorial.md beside this file says how it gets there.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack

from demo_server import demo_urls
from pyspark.sql import SparkSession

from any2ds import download


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url_list", nargs="?", help="a list of URLs; none: some from a server on this machine")
    parser.add_argument("output_folder", nargs="?", default="pyspark_output", help="one that all machines see")
    parser.add_argument("--master", help="of the cluster; none: what spark-submit says, or two cores of this machine")
    given = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take PATH's python3
    with ExitStack() as stack:
        url_list = given.url_list or stack.enter_context(demo_urls())
        session = new_session(given.master)  # any2ds finds it by itself, and leaves it as it is
        stack.callback(session.stop)
        report = download(
            url_list=url_list,
            output_folder=given.output_folder,
            output_format="webdataset",
            number_sample_per_shard=10_000 if given.url_list else 50,
            timeout=10 if given.url_list else 2,
            distributor="pyspark",
            subjob_size=1000,  # shards in a Spark job
            # The server on this machine has another address each time: its list is never that of an earlier run.
            incremental_mode="incremental" if given.url_list else "overwrite",
            quiet=True,
        )
    print(f"{report.successes} of {report.count} files are in {given.output_folder}, in {report.shards} shards")


def new_session(master: str | None) -> SparkSession:
    """Whatever your cluster asks for belongs here; what spark-submit says is known already, and goes before."""
    builder = SparkSession.builder.appName("any2ds")
    if master or "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        builder = builder.master(master or "local[2,4]")
    return (
        builder.config("spark.task.maxFailures", "8")  # machines may be taken away
        .config("spark.executor.memoryOverhead", "2g")  # the work is done by Python, outside of Java's memory
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


if __name__ == "__main__":
    main()
