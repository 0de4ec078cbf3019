"""Each option of `download` has its effect on a build of rows with URLs, or is refused.

What shows the effect is seen from outside: stored bytes and columns, files, requests at a server, messages.
"""

import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

import any2ds
from any2ds import IncompleteRun
from any2ds.config.declare import declared
from any2ds.config.options import GROUPS, InputOptions, ShareOptions
from any2ds.core.errors import OptionError, RunError
from any2ds.testing.server import Server, serve
from any2ds.worker.worker import ShardWorker
from tests.support.dns import serve_dns
from tests.support.fetching import _counted_as
from tests.support.pictures import encoded, jpeg, photograph
from tests.support.proxy import serve_proxy
from tests.support.recordings import film, tone
from tests.support.stuck import StuckFetchers
from tests.support.wandb_files import environment, of_kind, recorded, table

# --- what cannot be given, and what others show ---

OF_THE_RECIPE = [info.name for info in declared((InputOptions, ShareOptions))]
OF_FOLDERS = {"output_folder": "out", "preset": "img2dataset", "incremental_mode": "extend", "data_column": "image"}
OF_FOLDERS["referer_col"] = "page"
# Their effect is seen in other tests of builds: in test_url_members.py, and in those of clusters.
ELSEWHERE = ("member_options", "verify_hash", "on_hash_mismatch", "ray_address", "beam_options", "subjob_size")
SHOWN: dict[str, str] = {}  # option -> the test below that shows its effect


def shows(*names: str) -> Callable[[Any], Any]:
    """For a test of these options."""

    def marked(test: Any) -> Any:
        for name in names:
            assert name not in SHOWN, f"{name} is shown twice"
            SHOWN[name] = test.__name__
        return test

    return marked


def test_each_option_of_download_is_dealt_with() -> None:
    dealt_with = [*SHOWN, *OF_THE_RECIPE, *OF_FOLDERS, *ELSEWHERE]
    assert sorted(dealt_with) == sorted(info.name for info in declared(GROUPS))


# --- a recipe of rows ---


class Listed(any2ds.Recipe):
    """Files at URLs, with a number, boxes and clips."""

    rows: ClassVar[list[dict[str, Any]]] = []

    def info(self) -> any2ds.Info:
        boxes = any2ds.Sequence(any2ds.Sequence("float32"))
        return any2ds.Info({"file": any2ds.Bytes(), "n": int, "boxes": boxes, "clips": any2ds.Text()})

    def splits(self, dl: Any) -> Any:
        return any2ds.UrlRows(self.rows)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    picture = photograph(64, 48)
    camera = Image.Exif()
    camera[0x010F] = "Camera"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.bin", bytes(100_000))
        file.writestr("text.txt", "text")
    frames = [Image.new("L", (16, 16), 60 * n) for n in range(3)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:], duration=100)
    contents = {
        "picture.jpg": encoded(picture, "JPEG", quality=90, exif=camera.tobytes()),
        "wide.png": encoded(photograph(80, 16)),
        "broken.jpg": jpeg(picture)[:600],
        "page.html": b"<html><body><h1>Moss</h1>grows slowly, and rests in winter</body></html>",
        "packed.zip": packed.getvalue(),
        "tone.wav": tone(seconds=0.5),
        "zeros.bin": bytes(20 << 20),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media) as running:
        yield running


class Builds:
    """Builds of rows with URLs in folders of their own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self._made = 0
        self.out = folder
        self.report: Any = None

    def __call__(self, *urls: str | Mapping[str, Any], **options: Any) -> list[tuple[dict[str, Any], bytes]]:
        """The metadata of each sample, and its file, in the order of the rows."""
        rows = [{"url": url} if isinstance(url, str) else dict(url) for url in urls]
        Listed.rows = [{"n": n, "boxes": [], "clips": "", **row} for n, row in enumerate(rows)]
        self._made += 1
        data_dir = self._folder / f"data{self._made}"
        self.out = data_dir / "listed/1.0.0"
        given = {"data_dir": str(data_dir), "output_format": "files", "distributor": "inline", "quiet": True}
        self.report = any2ds.build(Listed, **{**given, "report": False, **self._options, **options})
        return self.found()

    def found(self) -> list[tuple[dict[str, Any], bytes]]:
        rows = [row for path in sorted(self.out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        stored = {path.name.partition(".")[0]: path for path in self.out.glob("*/*.*") if path.suffix != ".json"}
        own = {row["key"]: stored[row["key"]].read_bytes() if row["key"] in stored else b"" for row in rows}
        return [(row, own[row["key"]]) for row in sorted(rows, key=lambda row: (row["n"], row["key"]))]

    def codes(self, *urls: str, **options: Any) -> list[str]:
        """What became of each row."""
        return [row["error_code"] or row["status"] for row, _ in self(*urls, **options)]


@pytest.fixture
def built(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


@pytest.mark.parametrize("name", [*OF_THE_RECIPE, *OF_FOLDERS])
def test_what_a_recipe_says_is_no_option(name: str, built: Builds) -> None:
    with pytest.raises(OptionError, match=f"{name}.* (cannot be given|has no effect)|unknown option '{name}'"):
        built("http://127.0.0.1:1/", **{name: OF_FOLDERS.get(name, 1)})
    assert not built.out.exists()


# --- what is written ---


@shows("row_group_bytes", "parquet_data", "number_sample_per_shard", "oom_shard_count", "output_format")
def test_how_shards_are_made(built: Builds, server: Server) -> None:
    options: dict[str, Any] = {"row_group_bytes": 1, "parquet_data": "image", "number_sample_per_shard": 2}
    built(*[server.url("picture.jpg")] * 3, output_format="parquet", oom_shard_count=3, **options)
    shards = [pq.ParquetFile(path) for path in (built.out / "000.parquet", built.out / "001.parquet")]
    assert [shard.num_row_groups for shard in shards] == [2, 1]
    assert b"Image" in shards[0].schema_arrow.metadata[b"huggingface"]


@shows("metadata_format", "file_ext", "compute_md5", "compute_hash")
def test_what_the_metadata_say(built: Builds, server: Server, media: Path) -> None:
    options: dict[str, Any] = {"compute_md5": False, "compute_hash": "sha256", "metadata_format": "csv,jsonl"}
    ((row, _),) = built(server.url("picture.jpg"), file_ext="bin", **options)
    assert (row["ext"], row.get("md5")) == ("bin", None)
    assert row["sha256"] == hashlib.sha256((media / "picture.jpg").read_bytes()).hexdigest()
    assert {path.suffix for path in built.out.glob("00000.*")} == {".csv", ".jsonl", ".parquet"}


@shows("dedupe")
def test_a_url_in_several_rows_is_fetched_for_each(built: Builds, media: Path) -> None:
    counts = []
    for dedupe in ("shard", "none"):
        with serve(media) as server:
            built(*[server.url("picture.jpg")] * 3, dedupe=dedupe)
            counts.append(server.counts["picture.jpg"])
    assert counts == [1, 3]


# --- how it is stored ---

STEP = """
import os, threading
from pathlib import Path

HERE = Path(__file__).parent
SEVERAL = threading.Barrier(3)


def listing(sample):
    names = [name for _, _, names in os.walk(HERE / "staging") for name in names]
    links = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if each.isdigit() and
             os.path.lexists(f"/proc/self/fd/{each}")]
    return sample.with_data(repr((names, [link for link in links if link.startswith(str(HERE))])).encode(), "txt")


def together(sample):
    SEVERAL.wait(3)
    return sample


def slow(sample):
    threading.Event().wait(5)
    return sample


def process(sample):
    return sample.with_data(str(os.getpid()).encode(), "txt")


def metrics(sample):
    import urllib.request
    port = next(iter(HERE.glob("port-*"))).name.removeprefix("port-")
    return sample.with_data(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read(), "txt")
"""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEP)
    return path


@shows("transform", "staging_dir")
def test_files_wait_in_the_staging_folder(built: Builds, server: Server, steps: Path) -> None:
    options: dict[str, Any] = {"staging_dir": str(steps.parent / "staging"), "number_sample_per_shard": 1}
    found = built(*[server.url("picture.jpg")] * 3, transform=f"{steps}:listing", **options)
    assert any(str(steps.parent / "staging") in seen.decode() for _, seen in found)
    found = built(server.url("picture.jpg"), transform=f"{steps}:listing")
    assert not any(str(steps.parent / "staging") in seen.decode() for _, seen in found)


@shows("fsync")
def test_files_are_flushed(built: Builds, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    for way in (True, False):
        calls: list[int] = []
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", calls.append)
            built(server.url("picture.jpg"), fsync=way)
        flushed.append(len(calls))
    assert flushed[0] > flushed[1]


@shows("min_free_bytes")
def test_room_stays_free(built: Builds, server: Server) -> None:
    with pytest.raises(RunError, match="free"):
        built(server.url("picture.jpg"), min_free_bytes=1 << 50)


class Noted(MemoryFileSystem):
    """Notes its options, and fails or waits where it is told to."""

    cachable = False
    labels: ClassVar[set[str]] = set()
    fails: ClassVar[bool] = False
    tries: ClassVar[int] = 0
    wait: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def __init__(self, label: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.labels.add(label)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if path.endswith(".tar"):
            Noted.tries += 1
            Noted.wait()
            if Noted.fails:
                raise ValueError("it is not taken")
        super().pipe_file(path, value, mode, **options)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("memory", Noted, clobber=True)
    yield f"memory://{uuid.uuid4().hex}"
    fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)
    MemoryFileSystem.store.clear()


@shows("storage_options", "max_shard_retry")
def test_a_store_has_options_and_a_shard_that_failed_is_made_again(
    built: Builds, server: Server, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"storage_options": {"memory": {"label": "mine"}}, "output_format": "webdataset"}
    monkeypatch.setattr(Noted, "fails", True)
    tries = []
    for retries in (0, 2):
        monkeypatch.setattr(Noted, "tries", 0)
        with pytest.raises(IncompleteRun):
            built(server.url("picture.jpg"), data_dir=f"{store}/{retries}", max_shard_retry=retries, **options)
        tries.append(Noted.tries)
    assert tries[1] == 3 * tries[0]
    assert Noted.labels == {"mine"}


# --- what becomes of the files: what an option changes, beside others that it needs ---

FILES: list[tuple[str, Any, dict[str, Any], str]] = [
    ("file_size", 16, {}, "picture.jpg"),
    ("decode_check", True, {}, "broken.jpg"),
    ("unpack", True, {}, "packed.zip"),
    ("unpack_max_bytes", 1000, {"unpack": True}, "packed.zip"),
    ("extract_text", True, {}, "page.html"),
    ("resize_mode", "center_crop", {"file_size": 16}, "picture.jpg"),
    ("resize_only_if_bigger", False, {"file_size": 96}, "picture.jpg"),
    ("upscale_interpolation", "nearest", {"file_size": 96, "resize_only_if_bigger": False}, "picture.jpg"),
    ("downscale_interpolation", "nearest", {"file_size": 16}, "picture.jpg"),
    ("encode_format", "png", {}, "picture.jpg"),
    ("encode_quality", 20, {"file_size": 16}, "picture.jpg"),
    ("skip_reencode", False, {}, "picture.jpg"),
    ("only_images", True, {}, "page.html"),
    ("min_image_size", 60, {}, "picture.jpg"),
    ("max_image_area", 100, {"file_size": 16}, "picture.jpg"),
    ("max_aspect_ratio", 3, {}, "wide.png"),
    ("extract_exif", True, {}, "picture.jpg"),
    ("bbox_col", "boxes", {}, "picture.jpg"),
    ("animated", "first", {}, "moving.gif"),
    ("audio_rate", 4000, {}, "tone.wav"),
    ("audio_channels", 1, {}, "tone.wav"),
    ("audio_format", "flac", {}, "tone.wav"),
    ("min_duration", 3, {}, "tone.wav"),
    ("max_duration", 0.1, {}, "tone.wav"),
    ("audio_trim", 0.2, {}, "tone.wav"),
]
FILMS: list[tuple[str, Any, dict[str, Any], str]] = [
    ("video_size", 32, {}, "film.mp4"),
    ("video_fps", 5, {}, "film.mp4"),
    ("video_format", "webm", {}, "film.mp4"),
    ("clip_seconds", 0.25, {}, "film.mp4"),
    ("clips_col", "clips", {}, "film.mp4"),
    ("frames", 2, {}, "film.mp4"),
    ("frame_interval", 0.2, {}, "film.mp4"),
    ("video_audio", "drop", {}, "film.mp4"),
]


def without_effect(built: Builds, server: Server, cases: list[tuple[str, Any, dict[str, Any], str]]) -> list[str]:
    """The options that change nothing."""
    found, without = [], dict[str, Any]()
    for name, value, rest, file in cases:
        row = {"url": server.url(file), "boxes": [[0.1, 0.1, 0.9, 0.9]], "clips": "[[0.1, 0.3]]"}
        shown = f"{file} {rest}"
        if shown not in without:
            without[shown] = built(row, **rest)
        if built(row, **{**rest, name: value}) == without[shown]:
            found.append(name)
    return found


@shows(*(name for name, *_ in FILES))
def test_what_becomes_of_files(built: Builds, server: Server) -> None:
    assert not without_effect(built, server, FILES)


@pytest.mark.slow
@shows(*(name for name, *_ in FILMS))
def test_what_becomes_of_films(built: Builds, server: Server, media: Path) -> None:
    (media / "film.mp4").write_bytes(film(seconds=0.5))
    assert not without_effect(built, server, FILMS)


@shows("disable_all_reencoding")
def test_nothing_is_decoded(built: Builds, server: Server) -> None:
    with pytest.raises(OptionError, match=r"^disable_all_reencoding stores images"):
        built(server.url("picture.jpg"), disable_all_reencoding=True, decode_check=True)
    assert not built.out.parent.exists()


# --- how it is fetched ---


def script_of(**entries: str) -> dict[str, list[str]]:
    return {f"{name}.jpg": entry.split("|") for name, entry in entries.items()}


@shows(
    *("retries", "max_file_bytes", "disallowed_header_directives"),
    *("max_retry_after", "user_agent", "headers", "total_timeout"),
)
def test_each_url_gets_its_answer(built: Builds, media: Path) -> None:
    script = script_of(
        again="503|redirect:picture.jpg",
        big="big:200000",
        excluded="ok:X-Robots-Tag=noai",
        wait="429:retry-after=1|redirect:picture.jpg",
        late="flow:3",
    )
    (media / "excluded.jpg").write_bytes((media / "picture.jpg").read_bytes())
    (media / "late.jpg").write_bytes((media / "picture.jpg").read_bytes())
    options: dict[str, Any] = {
        "max_file_bytes": 100_000,
        "disallowed_header_directives": None,
        "max_retry_after": 0.5,
        "total_timeout": 1.5,
        "user_agent": "mine/1",
        "headers": "X-Mine: yes, Cookie: mine=1",
    }
    codes, seen = [], []
    for more in ({}, options):
        with serve(media, script) as server:
            urls = [server.url(name) for name in script]
            codes.append(dict(zip(script, built.codes(*urls, retries=1, timeout=5, **more), strict=True)))
            seen.append(server.requests[-1].headers)
            assert server.counts["wait.jpg"] == (2 if more is not options else 1)
    assert {name: (codes[0][name], codes[1][name]) for name in script} == {
        "again.jpg": ("success", "success"),  # it was asked twice, at least
        "big.jpg": ("success", "too_large"),
        "excluded.jpg": ("opted_out", "success"),
        "wait.jpg": ("success", "http_429"),
        "late.jpg": ("success", "timeout_total"),
    }
    assert [(each.get("User-Agent"), each.get("X-Mine"), each.get("Cookie")) for each in seen][1] == (
        *("mine/1", "yes", "mine=1"),
    )


@shows("timeout", "connect_timeout", "stall_timeout")
def test_what_takes_too_long_is_cut(built: Builds, media: Path) -> None:
    script = script_of(slow="slow:1.5", drip="drip:0.05")
    for name in script:
        (media / name).write_bytes((media / "picture.jpg").read_bytes())
    with serve(media, script) as server, socket.create_server(("127.0.0.1", 0)) as mute:
        assert built.codes(server.url("slow.jpg"), timeout=0.3) == ["timeout_total"]
        never = f"https://127.0.0.1:{mute.getsockname()[1]}/"
        assert built.codes(never, timeout=20, connect_timeout=0.2) == ["timeout_connect"]
        drip = server.url("drip.jpg")
        assert built.codes(drip, stall_timeout=0.3, total_timeout=20) == ["timeout_stalled"]


@shows("thread_count", "max_per_host", "host_delay")
def test_a_host_is_asked_as_often_as_it_may_be(built: Builds, media: Path) -> None:
    most = []
    for options in ({}, {"thread_count": 1}, {"max_per_host": 2}, {"host_delay": 0.3}):
        with serve(media, script_of(picture="slow:0.3")) as server:
            built(*[f"{server.url('picture.jpg')}?{n}" for n in range(4)], **options)
            most.append(server.max_concurrent)
            times = [request.at for request in server.requests]
    assert most[0] > 2
    assert most[1:3] == [1, 2]
    assert times[-1] - times[0] > 0.5


@shows("hosts", "robots", "block_private_addresses", "allow_link_local", "allow_schemes")
def test_who_asks_and_who_is_asked(built: Builds, media: Path, tmp_path: Path) -> None:
    (robots := media / "robots.txt").write_text("User-agent: *\nDisallow: /picture.jpg\n")
    try:
        with serve(media) as server:
            url = server.url("picture.jpg")
            assert built.codes(url, block_private_addresses=True) == ["blocked_address"]
            file = (media / "picture.jpg").as_uri()
            assert built.codes(file) == ["scheme_not_allowed"]
            assert built.codes(file, allow_schemes="file") == ["success"]
            with _counted_as("metadata", "127.0.0.1"):
                assert built.codes(url) == ["blocked_address"]
                assert not server.requests
                assert built.codes(url, allow_link_local=True) == ["success"]
            assert built.codes(url, hosts={"127.0.0.1": {"user_agent": "mine/1"}}) == ["success"]
            assert server.requests[-1].headers["User-Agent"] == "mine/1"
            asked = server.counts["picture.jpg"]
            assert built.codes(url, robots="respect") == ["robots"]
            assert server.counts["picture.jpg"] == asked
    finally:
        robots.unlink()


@shows("proxy", "nameservers", "ignore_ssl_certificate")
def test_the_way_to_a_server(built: Builds, media: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serve(media))
        proxy = stack.enter_context(serve_proxy())
        names = stack.enter_context(serve_dns({}))
        assert built.codes("http://media.test/picture.jpg".replace("test", f"test:{server.port}"), proxy=proxy.url) == [
            "success"
        ]
        assert proxy.asked == [f"GET http://media.test:{server.port}/picture.jpg"]
        assert built.codes(f"http://media.test:{server.port}/picture.jpg", nameservers=names.address) == ["success"]
        assert names.counts["media.test", "A"]
        secure = stack.enter_context(serve(media, tls=True))
        assert built.codes(secure.url("picture.jpg")) == ["tls"]
        assert built.codes(secure.url("picture.jpg"), ignore_ssl_certificate=True) == ["success"]


@shows("max_buffered_bytes")
def test_bodies_are_bounded(built: Builds, media: Path, steps: Path) -> None:
    with serve(media) as server:
        staged: dict[str, Any] = {"staging_dir": str(steps.parent / "staging"), "transform": f"{steps}:listing"}
        on_disk = []
        for limit in (1 << 30, 100_000):
            urls = [server.url("picture.jpg"), server.url("zeros.bin")]
            found = built(*urls, max_buffered_bytes=limit, **staged)
            on_disk.append("deleted" in found[-1][1].decode())
    assert on_disk == [False, True]  # spool files have no names


@shows("watchdog_timeout")
def test_rows_whose_fetcher_falls_silent_fail(built: Builds, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    of = ShardWorker.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        ShardWorker, "of", classmethod(lambda cls, *given: of(cls, *given, new_fetcher=StuckFetchers(mutes_at="wide")))
    )
    urls = [server.url("picture.jpg"), server.url("wide.png")]
    assert "watchdog" in built.codes(*urls, watchdog_timeout=1, distributor="multiprocessing")


# --- how the work is shared out, and how it is watched ---


@shows("processes_count", "distributor")
def test_processes_share_the_work(built: Builds, media: Path, steps: Path) -> None:
    options: dict[str, Any] = {"number_sample_per_shard": 1, "thread_count": 1, "transform": f"{steps}:process"}
    own = str(os.getpid()).encode()
    with serve(media, {"picture.jpg": ["hold"]}) as server:

        def release() -> None:
            server.wait_for("picture.jpg", 2)
            server.release()

        threading.Thread(target=release).start()
        urls = [f"{server.url('picture.jpg')}?{n}" for n in range(4)]
        found = built(*urls, distributor="multiprocessing", processes_count=2, timeout=60, **options)
        assert own not in {pid for _, pid in found}
        assert server.max_concurrent == 2  # though each has one transfer at a time
        assert {pid for _, pid in built(*urls, distributor="inline", **options)} == {own}


@shows("transform_threads", "transform_timeout")
def test_steps_have_threads_and_time(built: Builds, server: Server, steps: Path) -> None:
    urls = [f"{server.url('picture.jpg')}?{n}" for n in range(3)]
    together: dict[str, Any] = {"transform": f"{steps}:together", "transform_threads": 3, "file_size": 16}
    assert built.codes(*urls, **together) == ["success"] * 3
    assert built.codes(urls[0], transform=f"{steps}:slow", transform_timeout=0.3) == ["transform_timeout"]


@shows("log_level", "quiet", "report", "reporters")
def test_what_is_told(
    built: Builds,
    server: Server,
    tmp_path: Path,
    with_report: None,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    urls = [server.url("picture.jpg")]
    built(*urls)
    assert capfd.readouterr().err == ""
    assert not (built.out / "report.html").exists()
    assert "samples" not in caplog.text
    told: dict[str, Any] = {"reporters": "jsonl", "log_level": "info"}
    built(*urls, quiet=False, report=True, **told)
    assert "1 row" in capfd.readouterr().err
    assert (built.out / "report.html").exists()
    assert "listed:1.0.0: train: 1 samples" in caplog.text
    assert list((built.out / ".any2ds/progress").iterdir())


@shows("metrics_port")
def test_metrics_are_served(built: Builds, server: Server, steps: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (steps.parent / f"port-{port}").touch()
    ((_, seen),) = built(server.url("picture.jpg"), metrics_port=port, transform=f"{steps}:metrics")
    assert b"any2ds_" in seen


@shows("log_format", "log_interval")
def test_progress_is_told_as_often_as_asked_for(built: Builds, media: Path, capfd: pytest.CaptureFixture[str]) -> None:
    counts = []
    for interval in (100, 0.1):
        with serve(media, script_of(picture="slow:1")) as server:
            built(server.url("picture.jpg"), quiet=False, log_format="json", log_interval=interval)
        counts.append(len([json.loads(line) for line in capfd.readouterr().err.splitlines()]))
    assert counts[0] < counts[1]


PROGRAM = """
import any2ds


class Listed(any2ds.Recipe):
    '''Pictures.'''

    def info(self):
        return any2ds.Info({"file": any2ds.Image()})

    def splits(self, dl):
        return any2ds.UrlRows([{"url": each} for each in URLS])
"""


def build_command(folder: Path, urls: list[str], *options: str) -> list[str]:
    """That of a recipe, which is written into a folder."""
    folder.mkdir()
    (folder / "listed.py").write_text(f"URLS = {urls}\n{PROGRAM}")
    return [sys.executable, "-m", "any2ds", "build", "listed.py", "--data_dir=data", *options]


@pytest.mark.slow
@shows("enable_wandb", "wandb_project")
def test_weights_and_biases_are_told(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    options = "--enable_wandb --wandb_project=mine"
    command = build_command(folder, [server.url("picture.jpg")] * 3, "--distributor=inline", *options.split())
    given: dict[str, Any] = {
        "cwd": folder,
        "env": environment(folder, WANDB_MODE="offline", WANDB_ENTITY="we", WANDB_NAME="first"),
        "text": True,
    }
    done = subprocess.run(command, check=False, capture_output=True, **given)
    assert done.returncode == 0, done.stderr
    (records,) = recorded(folder)
    (about,) = of_kind(records, "run")
    assert (about["project"], about["entity"], about["display_name"]) == ("mine", "we", "first")
    assert [row[0] for row in table(folder, "status")["data"]] == ["success"]


@pytest.mark.slow
@shows("grace")
def test_ctrl_c_gives_open_shards_time(media: Path, tmp_path: Path) -> None:
    stored = []
    for grace in (0, 60):
        with serve(media, {"wide.png": ["hold"]}) as server:
            folder = tmp_path / str(grace)
            waits = ("--timeout=0", "--stall_timeout=0", f"--grace={grace}")
            running = subprocess.Popen(build_command(folder, [server.url("wide.png")], *waits), cwd=folder)
            server.wait_for("wide.png")
            running.send_signal(signal.SIGINT)
            if grace:
                server.release()
            running.wait(100)
            stored.append(len(list(folder.rglob("*_stats.json"))))
    assert stored == [0, 1]
