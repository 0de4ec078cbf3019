"""The shortest way from a list of URLs to a dataset in Python:  python examples/simple_example.py"""

from demo_server import demo_urls

from any2ds import download

if __name__ == "__main__":
    with demo_urls() as url_list:  # or the path of a list of your own
        report = download(
            url_list=url_list,
            output_folder="simple_output",
            output_format="webdataset",
            caption_col="caption",
            number_sample_per_shard=100,
            timeout=2,
            incremental_mode="overwrite",  # the server has another address each time; without it, a run goes on
        )
    print(f"{report.successes} of {report.count} files are in simple_output")
