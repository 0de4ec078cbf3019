"""Sockets that cannot be opened because this process has too many files open, and what follows from that."""

import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.core.errors import UnfitWorker
from any2ds.fetch.policy.open_files import OpenFiles
from any2ds.testing.server import serve

# In a process of its own. When it has begun to fetch, all but a few of its files are taken, as by another thread.
SHORT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from contextlib import closing
from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.rows import Row
from any2ds.fetch.fetcher import UrlFetcher
host, port, left, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
given = {"url_list": "-", "thread_count": 60, "retries": 0, "timeout": 60, "max_per_host": most}
options = Config.from_options(given).fetch
rows = [Row(0, n, str(n), f"http://{host}:{port}/{n}".replace("N", str(n % 100 + 1))) for n in range(300)]
warm_up, taken, outcomes = [Row(0, 300, "", f"http://127.0.0.1:{port}/300")], [], []
with closing(UrlFetcher(options, Buffer(1 << 26, 60))) as fetcher:
    list(fetcher.fetch(warm_up))  # whatever is imported late
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for file in taken[-left:]:
            os.close(file)
    for batch in fetcher.fetch(rows):
        outcomes += [getattr(f.outcome, "code", "success") for f in batch]
    for file in taken[:-left]:
        os.close(file)
print(len(outcomes), *sorted(set(outcomes)))
"""


@pytest.mark.parametrize(
    ("host", "left", "most"), [("127.1.0.N", 20, 10**6), ("localhost", 20, 10**6), ("127.1.0.N", 40, 4)]
)
def test_a_row_without_a_socket_is_tried_again_with_fewer_at_once(
    tmp_path: Path, host: str, left: int, most: int
) -> None:
    pytest.importorskip("resource")
    for number in range(301):
        (tmp_path / str(number)).write_bytes(b"body")
    with serve(tmp_path, host="0.0.0.0") as server:
        command = [sys.executable, "-c", SHORT, host, str(server.port), str(left), str(most)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "300 success\n", done.stderr
    assert "waiting for the network" not in done.stderr


def test_there_are_fewer_transfers_than_had_sockets_and_more_again_after_a_while() -> None:
    files = OpenFiles()
    files.ran_out(11.0, 70)
    assert files.transfers == 61
    assert not files.look(30.0)
    assert files.look(80.0)
    assert files.transfers == 69


def test_a_machine_on_which_no_socket_can_be_opened_for_long_ends_the_run() -> None:
    files = OpenFiles()
    for now in (0.0, 30.0, 60.0):
        files.ran_out(now, 0)
        assert files.transfers == 1
    files.opened()
    files.ran_out(100.0, 0)
    with pytest.raises(UnfitWorker, match="ulimit -n"):
        files.ran_out(161.0, 0)
