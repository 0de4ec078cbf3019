"""thread_count=auto over real sockets."""

import pytest

from any2ds.config.options import Config
from any2ds.core.errors import OptionError
from tests.support.play import Play


def test_the_window_grows_where_a_server_makes_us_wait() -> None:
    play = Play({"a.jpg": "slow:0.1"}, output_format="dummy", thread_count="auto", max_per_host=1_000_000)
    (play.folder / "urls.txt").write_text("".join(f"{play.web.url('a.jpg')}?{n}\n" for n in range(4000)))
    assert play.run("download", "urls.txt").exit_code == 0
    assert play.web.counts["a.jpg"] == 4000
    assert play.web.max_concurrent > 64


def test_auto_is_a_word_and_bounded_by_memory() -> None:
    def most(**options: object) -> int:
        return Config.from_options({"url_list": "-", **options}).fetch.most_transfers

    assert most(thread_count=7) == 7
    assert most(thread_count="auto", max_buffered_bytes="16MiB") == 128
    assert most(thread_count="auto") == most() == 8192
    with pytest.raises(OptionError, match="auto, or a whole number of at least 1"):
        most(thread_count="many")
