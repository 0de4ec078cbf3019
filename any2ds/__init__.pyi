"""any2ds: from a list of URLs to a dataset.

from any2ds import download
download(url_list="urls.parquet", output_folder="dataset", output_format="webdataset")
"""

# Made by tools/stubs.py from the declared options: make stubs.

from collections.abc import Callable, Mapping
from collections.abc import Sequence as _Sequence
from pathlib import Path
from typing import Any, Literal

from any2ds import beam as beam
from any2ds.core.declaration import transform as transform
from any2ds.core.errors import Any2dsError as Any2dsError
from any2ds.core.errors import RunError as RunError
from any2ds.core.errors import UsageError as UsageError
from any2ds.core.reports import IncompleteRun as IncompleteRun
from any2ds.core.reports import RunReport as RunReport
from any2ds.core.samples import Sample as Sample
from any2ds.dataset.add_columns import ColumnsAdded as ColumnsAdded
from any2ds.dataset.features import Audio as Audio
from any2ds.dataset.features import Bytes as Bytes
from any2ds.dataset.features import ClassLabel as ClassLabel
from any2ds.dataset.features import Image as Image
from any2ds.dataset.features import Optional as Optional
from any2ds.dataset.features import Scalar as Scalar
from any2ds.dataset.features import Sequence_ as Sequence
from any2ds.dataset.features import Tensor as Tensor
from any2ds.dataset.features import Text as Text
from any2ds.dataset.features import Video as Video
from any2ds.dataset.features import parse_bool as parse_bool
from any2ds.dataset.verify.report import VerifyReport as VerifyReport
from any2ds.describe.card.card import Card as Card
from any2ds.describe.summary import Summary as Summary
from any2ds.estimate.result import Estimate as Estimate
from any2ds.load.collate import collate as collate
from any2ds.load.load import load as load
from any2ds.load.splits import split as split
from any2ds.recipes.info import Info as Info
from any2ds.recipes.recipe import Recipe as Recipe
from any2ds.recipes.recipe import RecipeConfig as RecipeConfig
from any2ds.recipes.recipe import UrlRows as UrlRows
from any2ds.writers.example_records import parse_example as parse_example

__all__ = [
    "Any2dsError",
    "Audio",
    "Bytes",
    "ClassLabel",
    "Image",
    "IncompleteRun",
    "Info",
    "Optional",
    "Recipe",
    "RecipeConfig",
    "RunError",
    "RunReport",
    "Sample",
    "Scalar",
    "Sequence",
    "Tensor",
    "Text",
    "UrlRows",
    "UsageError",
    "Video",
    "__version__",
    "add_columns",
    "beam",
    "build",
    "card",
    "collate",
    "download",
    "estimate",
    "inspect",
    "load",
    "parse_bool",
    "parse_example",
    "report",
    "retry",
    "split",
    "transform",
    "verify",
]
__version__: str

def download(
    url_list: Any,
    output_folder: str | Path = "files",
    *,
    input_format: str | None = None,
    separator: str | None = None,
    quoting: Literal["auto", "minimal", "none"] = "auto",
    comment: str | None = None,
    columns: str | _Sequence[str] | None = None,
    encoding: str | None = None,
    rows: str | None = None,
    url_template: str | None = None,
    default_scheme: str | None = None,
    unescape_html: bool = False,
    url_col: str | Mapping[str, str] = "url",
    require: str = "all",
    caption_col: str | None = None,
    save_additional_columns: str | _Sequence[str] | None = None,
    limit: int | None = None,
    shuffle: int | None = None,
    column_types: Mapping[str, str] | str | None = None,
    on_bad_row: Literal["stop", "fail_row"] = "fail_row",
    preset: Literal["img2dataset"] | None = None,
    output_format: Literal["arrayrecord", "dummy", "files", "parquet", "tfrecord", "webdataset"] = "files",
    incremental_mode: Literal["incremental", "extend", "overwrite"] = "incremental",
    metadata_format: str | _Sequence[Literal["parquet", "csv", "jsonl"]] = ("parquet",),
    row_group_bytes: int | str = 4194304,
    parquet_data: Literal["binary", "image", "audio"] = "binary",
    data_column: str = "data",
    number_sample_per_shard: int = 10000,
    oom_shard_count: int = 5,
    key_col: str | None = None,
    file_ext: str = "auto",
    compute_md5: bool = True,
    compute_hash: Literal["md5", "sha256", "sha512"] | None = None,
    verify_hash: str | _Sequence[str] | Mapping[str, str | _Sequence[str]] | None = None,
    on_hash_mismatch: Literal["drop", "flag", "fail_row"] = "fail_row",
    dedupe: Literal["shard", "run", "none"] = "shard",
    staging_dir: str | Path | None = None,
    fsync: bool = True,
    min_free_bytes: int | str | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    file_size: int | None = None,
    decode_check: bool = False,
    disable_all_reencoding: bool = False,
    unpack: bool = False,
    unpack_max_bytes: int | str = 1073741824,
    extract_text: bool = False,
    transform: str | Callable[..., Any] | _Sequence[str | Callable[..., Any]] | None = None,
    member_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    resize_mode: Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"] = "keep_ratio",
    resize_only_if_bigger: bool = True,
    upscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "lanczos",
    downscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "area",
    encode_format: Literal["keep", "jpg", "png", "webp", "avif"] = "keep",
    encode_quality: int = 95,
    skip_reencode: bool = True,
    only_images: bool = False,
    min_image_size: int = 0,
    max_image_area: float = 200000000,
    max_aspect_ratio: float | None = None,
    extract_exif: bool = False,
    bbox_col: str | None = None,
    animated: Literal["first", "keep"] | None = None,
    audio_rate: int | None = None,
    audio_channels: int | None = None,
    audio_format: Literal["keep", "flac", "ogg", "opus", "mp3", "wav"] = "keep",
    min_duration: float = 0.0,
    max_duration: float | None = None,
    audio_trim: float = 0.0,
    video_size: int = 0,
    video_fps: float | None = None,
    video_format: Literal["keep", "mp4", "webm", "mkv"] = "keep",
    clip_seconds: float = 0.0,
    clips_col: str | None = None,
    frames: int = 0,
    frame_interval: float = 0.0,
    video_audio: Literal["keep", "drop", "split"] = "keep",
    thread_count: int | Literal["auto"] = "auto",
    timeout: float = 10.0,
    total_timeout: float | None = None,
    retries: int = 0,
    connect_timeout: float = 0.0,
    stall_timeout: float = 30.0,
    max_per_host: int = 1000000,
    host_delay: float = 0.0,
    max_retry_after: float = 120.0,
    watchdog_timeout: float | None = None,
    max_file_bytes: int | str = 1073741824,
    max_buffered_bytes: int | str = 1073741824,
    user_agent: str = "any2ds/0.1.0 (+https://github.com/any2ds/any2ds)",
    headers: str | _Sequence[str] | Mapping[str, str] | None = None,
    referer_col: str | None = None,
    proxy: str | None = None,
    nameservers: str | _Sequence[str] | None = None,
    ignore_ssl_certificate: bool = False,
    disallowed_header_directives: str | _Sequence[str] | None = ("noai", "noimageai", "noindex", "noimageindex"),
    robots: Literal["public", "respect", "ignore"] = "public",
    allow_schemes: str
    | _Sequence[
        Literal[
            "abfs",
            "abfss",
            "adl",
            "az",
            "file",
            "gcs",
            "gs",
            "hdfs",
            "hf",
            "memory",
            "oci",
            "oss",
            "s3",
            "s3a",
            "sftp",
            "smb",
            "ssh",
            "tos",
            "webhdfs",
        ]
    ]
    | None = None,
    block_private_addresses: bool = False,
    allow_link_local: bool = False,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    processes_count: int | None = None,
    distributor: Literal["beam", "inline", "multiprocessing", "pyspark", "ray"] = "multiprocessing",
    ray_address: str | None = None,
    beam_options: str | _Sequence[str] | None = None,
    subjob_size: int = 1000,
    max_shard_retry: int = 3,
    grace: float = 10.0,
    transform_threads: int | None = None,
    transform_timeout: float = 300.0,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    quiet: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    log_interval: float = 10.0,
    log_format: Literal["text", "json"] = "text",
    report: bool = True,
    reporters: str | _Sequence[Literal["console", "jsonl", "prometheus", "wandb"]] | None = None,
    metrics_port: int | None = None,
    enable_wandb: bool = False,
    wandb_project: str = "any2ds",
    config: str | Path | None = None,
    image_size: Any = ...,
    user_agent_token: Any = ...,
) -> RunReport:
    """Fetch every row of `url_list` and pack the files into shards in `output_folder`.

    `url_list` is
        a Path or one text: files, which are a path, a folder, a glob, or the URL of a list
        a list of texts: URLs, one row each; None, NaN and what is no URL are rows that fail
        … which all exist here or end as lists do (.txt, .csv.gz …), none of them http(s): files
        a list with a Path in it, or any list with input_format: files
        a Series, or an Arrow or NumPy array of texts: URLs, as above
        an Arrow table or stream, a DataFrame, a list of dicts: rows

    Which rows:
        url_list: file, folder, glob or list of them, local or remote; - is standard input (default: required)
        input_format: txt, csv, tsv, json, jsonl, parquet; csv.gz where compressed (default: by the file name, else txt)
        separator: between values: ';', '|', tab (default: comma; in tsv tab)
        quoting: of csv and tsv: minimal, none; auto: minimal in csv, by the first rows in tsv (default: auto)
        comment: beginning of lines that are no rows: # (default: none)
        columns: names of the columns of a csv or tsv without a header: url,caption (default: the first line)
        encoding: of text: latin-1, cp1252 … (default: utf-8, or by its mark)
        rows: path to the rows in a json document: data.items (default: None)
        url_template: URLs of columns: 'https://host/{id}.{extension}' (default: None)
        default_scheme: of URLs that have none: https or http (default: they fail)
        unescape_html: turn &amp; and the like in URLs into characters (default: False)
        url_col: column of the URLs, or a path: image.url, images[].url; image:image_url,mask:mask_url for rows with several (default: url)
        require: of several URLs in a row: all have to be there, any of them, or names: image,mask (default: all)
        caption_col: column of the captions (default: None)
        save_additional_columns: columns to carry into the metadata; id,width:original_width renames; '*' is all (default: None)
        limit: the first N rows only; the same command without it makes the rest (default: all)
        shuffle: seed of a random order of rows: of a whole parquet list, else within 100,000 rows (default: the list's order)
        column_types: Arrow types of columns: id:string,score:float (default: None)
        on_bad_row: of malformed rows: fail_row, as bad_row; stop, which reads up to there (default: fail_row)
    What is written:
        preset: img2dataset: that tool's option names, defaults and metadata (default: None)
        output_folder: folder for the dataset, local or remote (s3://bucket/name) (default: files)
        output_format: files, webdataset, parquet, tfrecord or arrayrecord (default: files)
        incremental_mode: with shards there: incremental makes what is missing, extend adds a list, overwrite begins anew (default: incremental)
        metadata_format: parquet always; csv and jsonl in addition (default: parquet)
        row_group_bytes: bytes of files in a row group of parquet (needs output_format=parquet) (default: 4MiB)
        parquet_data: column of files: binary; image or audio, as Hugging Face's (needs output_format=parquet) (default: binary)
        data_column: column of files in parquet (needs output_format=parquet|tfrecord|arrayrecord) (default: data)
        number_sample_per_shard: rows in a shard (default: 10000)
        oom_shard_count: digits of the shard number (default: 5)
        key_col: column with an id that names each sample (default: numbers)
        file_ext: extension of files; auto: by their content (default: auto)
        compute_md5: add the md5 of files to the metadata (default: True)
        compute_hash: add another hash: md5, sha256 or sha512 (default: None)
        verify_hash: column with the hash of each file, and its kind: checksum:sha256 (default: None)
        on_hash_mismatch: another hash: fail_row; drop, not stored; flag, stored and marked (needs verify_hash) (default: fail_row)
        dedupe: fetch a URL of several rows once per shard, once per run, or for each row (none) (default: shard)
    How it is stored:
        staging_dir: local folder of unpublished shards (default: .any2ds/tmp of a local dataset, else temp)
        fsync: flush published files, so that a power failure leaves no partial shard (default: True)
        min_free_bytes: bytes to leave free (default: 256MiB, at most 2 %)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
    What becomes of the files:
        file_size: size of images in pixels (see resize_mode); 0 keeps them (not with resize_mode=no) (default: originals are kept)
        decode_check: decode files: damaged ones fail as not_decodable; adds width, duration … to the metadata (default: False)
        disable_all_reencoding: decode nothing: store all byte for byte (default: False)
        unpack: files in archives (zip, tar, gz …) become samples (default: False)
        unpack_max_bytes: what unpacks to more fails (needs unpack, audio_*, video_*, clip* or frame*) (default: 1GiB)
        extract_text: store the text of web pages and PDF files as .txt (default: False)
        transform: steps of your own: module:function, or my_step.py:clean (default: None)
        member_options: other options for a URL column: mask:encode_format=png,file_size=0 (default: None)
    What becomes of images:
        resize_mode: file_size is the shorter side: keep_ratio; the longer: keep_ratio_largest; a square: center_crop, border (needs file_size) (default: keep_ratio)
        resize_only_if_bigger: keep small images (needs file_size) (default: True)
        upscale_interpolation: for enlarging images (needs file_size and resize_only_if_bigger=False) (default: lanczos)
        downscale_interpolation: for shrinking images; nearest_exact for masks (needs file_size) (default: area)
        encode_format: jpg, png, webp, avif, or keep (default: keep)
        encode_quality: 1 to 100; of png 0 to 9, its compression (needs file_size, encode_format, skip_reencode=False, bbox_col, animated, frames or frame_interval) (default: 95)
        skip_reencode: keep the bytes of unchanged images (default: True)
        only_images: what is no image fails as not_decodable (default: False)
        min_image_size: a side of fewer pixels fails as too_small (default: 0)
        max_image_area: more pixels fail as too_many_pixels (default: 200 million)
        max_aspect_ratio: longer / shorter side, at most (default: no limit)
        extract_exif: add EXIF to the metadata, as JSON (default: False)
        bbox_col: column of boxes to blur: [[left, top, right, bottom], …], parts of width and height (default: None)
        animated: of animated images: first, a still one; keep, the file (default: first if images are resized or encoded)
    What becomes of sound:
        audio_rate: sample rate of sound files in Hz; of video with video_audio=split (default: None)
        audio_channels: 1 for mono, 2 for stereo; of the same files (default: None)
        audio_format: flac, ogg, opus, mp3, wav or keep (default: keep)
        min_duration: seconds; shorter files fail as too_short (default: 0)
        max_duration: seconds; longer ones fail as too_long; 0: no limit (default: None)
        audio_trim: seconds to keep from the start of sound; 0: all (default: 0)
    What becomes of video:
        video_size: shorter side in pixels; 0 keeps it (default: 0)
        video_fps: frames per second (default: None)
        video_format: mp4, webm, mkv or keep (default: keep)
        clip_seconds: cut sound and video into so many seconds; 0: no (default: 0)
        clips_col: column of [start, end] pairs in seconds, each a sample of sound or video (default: None)
        frames: store so many evenly spaced images in place of a video; 0: none (default: 0)
        frame_interval: store an image every so many seconds in place of a video; 0: none (default: 0)
        video_audio: sound of video: keep; drop; or split, into a file of its own (default: keep)
    How it is fetched:
        thread_count: transfers in flight per process, or auto (default: auto)
        timeout: seconds until the first byte, redirects included, and between bytes; 0: no limit (default: 10)
        total_timeout: seconds for an attempt; 0: no limit (default: by the size)
        retries: further attempts after a transient failure (default: 0)
        connect_timeout: seconds until connected; 0: no limit of its own (default: 0)
        stall_timeout: seconds below 100 bytes per second; 0: any (default: 30)
        max_per_host: transfers at once to a host, of all processes of a machine (default: adapted to each host)
        host_delay: seconds between two transfers to a host (default: 0)
        max_retry_after: seconds to wait for Retry-After, at most (default: 120)
        watchdog_timeout: seconds without progress until others go on; 0: never (default: by the other limits)
        max_file_bytes: larger bodies fail as too_large (default: 1GiB)
        max_buffered_bytes: bytes of memory for bodies, per process; more wait on disk (default: 1GiB)
        user_agent: User-Agent header (default: any2ds/0.1.0 (+https://github.com/any2ds/any2ds))
        headers: further request headers: 'Referer: https://a, X-Key: b' (default: None)
        referer_col: column sent as the Referer of each file (default: None)
        proxy: for all requests: http://, https:// or socks5h:// (default: None)
        nameservers: name servers: 1.1.1.1,8.8.8.8; os: the system looks up all names (default: those of the system)
        ignore_ssl_certificate: accept any certificate of servers (default: False)
        disallowed_header_directives: X-Robots-Tag directives that exclude a file; None for none (default: noai,noimageai,noindex,noimageindex)
        robots: robots.txt: public respects it on the public web, respect everywhere, ignore nowhere (default: public)
        allow_schemes: further schemes of rows, read with your rights and credentials: file,s3 (default: none)
        block_private_addresses: refuse loopback and private addresses (default: False)
        allow_link_local: fetch from link-local addresses, metadata services (not with block_private_addresses) (default: False)
        hosts: other options for some hosts, in a --config file: {'*.example.org': {max_per_host: 2}} (default: None)
    How the work is shared out:
        processes_count: worker processes, no more than shards (default: number of cores, fewer for small lists)
        distributor: multiprocessing; inline for debugging; pyspark, ray or beam for clusters (default: multiprocessing)
        ray_address: host:port, ray://host:10001, or auto (needs distributor=ray) (default: RAY_ADDRESS, else this machine)
        beam_options: flags of Beam: --runner=DataflowRunner,--project=… (needs distributor=beam) (default: this machine)
        subjob_size: shards that a cluster is given in one job (not with distributor=inline and not distributor=multiprocessing) (default: 1000)
        max_shard_retry: retries of a shard, also if its process died (default: 3)
        grace: seconds to finish shards after Ctrl-C, SIGTERM (default: 10)
        transform_threads: threads per process that decode and encode (default: cores / processes; 1 on a cluster)
        transform_timeout: seconds for a file, or batch, before it fails as transform_timeout; 0: no limit (default: 300)
        log_level: debug, info, warning or error (default: warning)
        quiet: no progress and no report on the terminal (default: False)
    How several runs make a dataset together:
        rank: number of this run, from 0, of several that make a dataset (default: by Slurm, torchrun, Kubernetes)
        world_size: number of these runs; 1 for a run of its own (default: SLURM_NTASKS, WORLD_SIZE)
    How it is watched:
        log_interval: seconds between progress lines, and records (default: 10)
        log_format: of progress lines: text, or json (default: text)
        report: write report.html into the output folder (default: True)
        reporters: further reporters: jsonl, prometheus, wandb (default: None)
        metrics_port: port for Prometheus, which it turns on; 0: any (default: None)
        enable_wandb: report to Weights & Biases, like --reporters=wandb (default: False)
        wandb_project: project in Weights & Biases (needs enable_wandb or reporters=wandb) (default: any2ds)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the figures of the run. Raises UsageError if it cannot start (nothing was created), and
    IncompleteRun, with the figures, if shards could not be written or the list broke off."""

def retry(
    output_folder: str | Path,
    *,
    codes: str | _Sequence[str] = ("transient",),
    transform: str | Callable[..., Any] | _Sequence[str | Callable[..., Any]] | None = None,
    staging_dir: str | Path | None = None,
    fsync: bool = True,
    min_free_bytes: int | str | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    thread_count: int | Literal["auto"] = "auto",
    timeout: float = 10.0,
    total_timeout: float | None = None,
    retries: int = 0,
    connect_timeout: float = 0.0,
    stall_timeout: float = 30.0,
    max_per_host: int = 1000000,
    host_delay: float = 0.0,
    max_retry_after: float = 120.0,
    watchdog_timeout: float | None = None,
    max_file_bytes: int | str = 1073741824,
    max_buffered_bytes: int | str = 1073741824,
    user_agent: str = "any2ds/0.1.0 (+https://github.com/any2ds/any2ds)",
    headers: str | _Sequence[str] | Mapping[str, str] | None = None,
    referer_col: str | None = None,
    proxy: str | None = None,
    nameservers: str | _Sequence[str] | None = None,
    ignore_ssl_certificate: bool = False,
    disallowed_header_directives: str | _Sequence[str] | None = ("noai", "noimageai", "noindex", "noimageindex"),
    robots: Literal["public", "respect", "ignore"] = "public",
    allow_schemes: str
    | _Sequence[
        Literal[
            "abfs",
            "abfss",
            "adl",
            "az",
            "file",
            "gcs",
            "gs",
            "hdfs",
            "hf",
            "memory",
            "oci",
            "oss",
            "s3",
            "s3a",
            "sftp",
            "smb",
            "ssh",
            "tos",
            "webhdfs",
        ]
    ]
    | None = None,
    block_private_addresses: bool = False,
    allow_link_local: bool = False,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    processes_count: int | None = None,
    distributor: Literal["beam", "inline", "multiprocessing", "pyspark", "ray"] = "multiprocessing",
    ray_address: str | None = None,
    beam_options: str | _Sequence[str] | None = None,
    subjob_size: int = 1000,
    max_shard_retry: int = 3,
    grace: float = 10.0,
    transform_threads: int | None = None,
    transform_timeout: float = 300.0,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    quiet: bool = False,
    log_interval: float = 10.0,
    log_format: Literal["text", "json"] = "text",
    report: bool = True,
    reporters: str | _Sequence[Literal["console", "jsonl", "prometheus", "wandb"]] | None = None,
    metrics_port: int | None = None,
    enable_wandb: bool = False,
    wandb_project: str = "any2ds",
    config: str | Path | None = None,
) -> RunReport:
    """Fetch failed rows of the dataset in `output_folder` again, into new shards behind the others.

    Which rows are tried again:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        codes: failures to try again: codes, http_4xx, http_5xx, all, or transient (default: transient)
        transform: the steps of your own of the dataset, if it was made elsewhere (default: those of the dataset)
    How it is stored:
        staging_dir: local folder of unpublished shards (default: .any2ds/tmp of a local dataset, else temp)
        fsync: flush published files, so that a power failure leaves no partial shard (default: True)
        min_free_bytes: bytes to leave free (default: 256MiB, at most 2 %)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
    How it is fetched:
        thread_count: transfers in flight per process, or auto (default: auto)
        timeout: seconds until the first byte, redirects included, and between bytes; 0: no limit (default: 10)
        total_timeout: seconds for an attempt; 0: no limit (default: by the size)
        retries: further attempts after a transient failure (default: 0)
        connect_timeout: seconds until connected; 0: no limit of its own (default: 0)
        stall_timeout: seconds below 100 bytes per second; 0: any (default: 30)
        max_per_host: transfers at once to a host, of all processes of a machine (default: adapted to each host)
        host_delay: seconds between two transfers to a host (default: 0)
        max_retry_after: seconds to wait for Retry-After, at most (default: 120)
        watchdog_timeout: seconds without progress until others go on; 0: never (default: by the other limits)
        max_file_bytes: larger bodies fail as too_large (default: 1GiB)
        max_buffered_bytes: bytes of memory for bodies, per process; more wait on disk (default: 1GiB)
        user_agent: User-Agent header (default: any2ds/0.1.0 (+https://github.com/any2ds/any2ds))
        headers: further request headers: 'Referer: https://a, X-Key: b' (default: None)
        referer_col: column sent as the Referer of each file (default: None)
        proxy: for all requests: http://, https:// or socks5h:// (default: None)
        nameservers: name servers: 1.1.1.1,8.8.8.8; os: the system looks up all names (default: those of the system)
        ignore_ssl_certificate: accept any certificate of servers (default: False)
        disallowed_header_directives: X-Robots-Tag directives that exclude a file; None for none (default: noai,noimageai,noindex,noimageindex)
        robots: robots.txt: public respects it on the public web, respect everywhere, ignore nowhere (default: public)
        allow_schemes: further schemes of rows, read with your rights and credentials: file,s3 (default: none)
        block_private_addresses: refuse loopback and private addresses (default: False)
        allow_link_local: fetch from link-local addresses, metadata services (not with block_private_addresses) (default: False)
        hosts: other options for some hosts, in a --config file: {'*.example.org': {max_per_host: 2}} (default: None)
    How the work is shared out:
        processes_count: worker processes, no more than shards (default: number of cores, fewer for small lists)
        distributor: multiprocessing; inline for debugging; pyspark, ray or beam for clusters (default: multiprocessing)
        ray_address: host:port, ray://host:10001, or auto (needs distributor=ray) (default: RAY_ADDRESS, else this machine)
        beam_options: flags of Beam: --runner=DataflowRunner,--project=… (needs distributor=beam) (default: this machine)
        subjob_size: shards that a cluster is given in one job (not with distributor=inline and not distributor=multiprocessing) (default: 1000)
        max_shard_retry: retries of a shard, also if its process died (default: 3)
        grace: seconds to finish shards after Ctrl-C, SIGTERM (default: 10)
        transform_threads: threads per process that decode and encode (default: cores / processes; 1 on a cluster)
        transform_timeout: seconds for a file, or batch, before it fails as transform_timeout; 0: no limit (default: 300)
        log_level: debug, info, warning or error (default: warning)
        quiet: no progress and no report on the terminal (default: False)
    How it is watched:
        log_interval: seconds between progress lines, and records (default: 10)
        log_format: of progress lines: text, or json (default: text)
        report: write report.html into the output folder (default: True)
        reporters: further reporters: jsonl, prometheus, wandb (default: None)
        metrics_port: port for Prometheus, which it turns on; 0: any (default: None)
        enable_wandb: report to Weights & Biases, like --reporters=wandb (default: False)
        wandb_project: project in Weights & Biases (needs enable_wandb or reporters=wandb) (default: any2ds)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the figures of the rows that were tried again. Raises UsageError if it cannot start, and IncompleteRun,
    with the figures, if shards could not be read or written."""

def estimate(
    url_list: Any,
    output_folder: str | Path = "files",
    *,
    input_format: str | None = None,
    separator: str | None = None,
    quoting: Literal["auto", "minimal", "none"] = "auto",
    comment: str | None = None,
    columns: str | _Sequence[str] | None = None,
    encoding: str | None = None,
    rows: str | None = None,
    url_template: str | None = None,
    default_scheme: str | None = None,
    unescape_html: bool = False,
    url_col: str | Mapping[str, str] = "url",
    require: str = "all",
    caption_col: str | None = None,
    save_additional_columns: str | _Sequence[str] | None = None,
    limit: int | None = None,
    shuffle: int | None = None,
    column_types: Mapping[str, str] | str | None = None,
    on_bad_row: Literal["stop", "fail_row"] = "fail_row",
    preset: Literal["img2dataset"] | None = None,
    output_format: Literal["arrayrecord", "dummy", "files", "parquet", "tfrecord", "webdataset"] = "files",
    incremental_mode: Literal["incremental", "extend", "overwrite"] = "incremental",
    metadata_format: str | _Sequence[Literal["parquet", "csv", "jsonl"]] = ("parquet",),
    row_group_bytes: int | str = 4194304,
    parquet_data: Literal["binary", "image", "audio"] = "binary",
    data_column: str = "data",
    number_sample_per_shard: int = 10000,
    oom_shard_count: int = 5,
    key_col: str | None = None,
    file_ext: str = "auto",
    compute_md5: bool = True,
    compute_hash: Literal["md5", "sha256", "sha512"] | None = None,
    verify_hash: str | _Sequence[str] | Mapping[str, str | _Sequence[str]] | None = None,
    on_hash_mismatch: Literal["drop", "flag", "fail_row"] = "fail_row",
    dedupe: Literal["shard", "run", "none"] = "shard",
    staging_dir: str | Path | None = None,
    fsync: bool = True,
    min_free_bytes: int | str | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    file_size: int | None = None,
    decode_check: bool = False,
    disable_all_reencoding: bool = False,
    unpack: bool = False,
    unpack_max_bytes: int | str = 1073741824,
    extract_text: bool = False,
    transform: str | Callable[..., Any] | _Sequence[str | Callable[..., Any]] | None = None,
    member_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    resize_mode: Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"] = "keep_ratio",
    resize_only_if_bigger: bool = True,
    upscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "lanczos",
    downscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "area",
    encode_format: Literal["keep", "jpg", "png", "webp", "avif"] = "keep",
    encode_quality: int = 95,
    skip_reencode: bool = True,
    only_images: bool = False,
    min_image_size: int = 0,
    max_image_area: float = 200000000,
    max_aspect_ratio: float | None = None,
    extract_exif: bool = False,
    bbox_col: str | None = None,
    animated: Literal["first", "keep"] | None = None,
    audio_rate: int | None = None,
    audio_channels: int | None = None,
    audio_format: Literal["keep", "flac", "ogg", "opus", "mp3", "wav"] = "keep",
    min_duration: float = 0.0,
    max_duration: float | None = None,
    audio_trim: float = 0.0,
    video_size: int = 0,
    video_fps: float | None = None,
    video_format: Literal["keep", "mp4", "webm", "mkv"] = "keep",
    clip_seconds: float = 0.0,
    clips_col: str | None = None,
    frames: int = 0,
    frame_interval: float = 0.0,
    video_audio: Literal["keep", "drop", "split"] = "keep",
    thread_count: int | Literal["auto"] = "auto",
    timeout: float = 10.0,
    total_timeout: float | None = None,
    retries: int = 0,
    connect_timeout: float = 0.0,
    stall_timeout: float = 30.0,
    max_per_host: int = 1000000,
    host_delay: float = 0.0,
    max_retry_after: float = 120.0,
    watchdog_timeout: float | None = None,
    max_file_bytes: int | str = 1073741824,
    max_buffered_bytes: int | str = 1073741824,
    user_agent: str = "any2ds/0.1.0 (+https://github.com/any2ds/any2ds)",
    headers: str | _Sequence[str] | Mapping[str, str] | None = None,
    referer_col: str | None = None,
    proxy: str | None = None,
    nameservers: str | _Sequence[str] | None = None,
    ignore_ssl_certificate: bool = False,
    disallowed_header_directives: str | _Sequence[str] | None = ("noai", "noimageai", "noindex", "noimageindex"),
    robots: Literal["public", "respect", "ignore"] = "public",
    allow_schemes: str
    | _Sequence[
        Literal[
            "abfs",
            "abfss",
            "adl",
            "az",
            "file",
            "gcs",
            "gs",
            "hdfs",
            "hf",
            "memory",
            "oci",
            "oss",
            "s3",
            "s3a",
            "sftp",
            "smb",
            "ssh",
            "tos",
            "webhdfs",
        ]
    ]
    | None = None,
    block_private_addresses: bool = False,
    allow_link_local: bool = False,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    processes_count: int | None = None,
    distributor: Literal["beam", "inline", "multiprocessing", "pyspark", "ray"] = "multiprocessing",
    ray_address: str | None = None,
    beam_options: str | _Sequence[str] | None = None,
    subjob_size: int = 1000,
    max_shard_retry: int = 3,
    grace: float = 10.0,
    transform_threads: int | None = None,
    transform_timeout: float = 300.0,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    quiet: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    log_interval: float = 10.0,
    log_format: Literal["text", "json"] = "text",
    report: bool = True,
    reporters: str | _Sequence[Literal["console", "jsonl", "prometheus", "wandb"]] | None = None,
    metrics_port: int | None = None,
    enable_wandb: bool = False,
    wandb_project: str = "any2ds",
    sample: int = 2000,
    from_dataset: str | Path | None = None,
    machines: tuple[int, ...] | int | _Sequence[int] | str = (1, 4, 16),
    bandwidth: int = 1000000000,
    sample_folder: str | Path = "estimate-sample",
    json: str | Path | None = None,
    config: str | Path | None = None,
    image_size: Any = ...,
    user_agent_token: Any = ...,
) -> Estimate:
    """Say what `download` with these options would take: time, machines, memory and disk, and what would fail.

    The list is read, and a sample of its rows is downloaded into `sample_folder`, with at most four requests per second
    to each host, or as `host_delay` says if it is given: for 10 s of each host if the list is small, else for 30 s.

    Which rows:
        url_list: file, folder, glob or list of them, local or remote; - is standard input (default: required)
        input_format: txt, csv, tsv, json, jsonl, parquet; csv.gz where compressed (default: by the file name, else txt)
        separator: between values: ';', '|', tab (default: comma; in tsv tab)
        quoting: of csv and tsv: minimal, none; auto: minimal in csv, by the first rows in tsv (default: auto)
        comment: beginning of lines that are no rows: # (default: none)
        columns: names of the columns of a csv or tsv without a header: url,caption (default: the first line)
        encoding: of text: latin-1, cp1252 … (default: utf-8, or by its mark)
        rows: path to the rows in a json document: data.items (default: None)
        url_template: URLs of columns: 'https://host/{id}.{extension}' (default: None)
        default_scheme: of URLs that have none: https or http (default: they fail)
        unescape_html: turn &amp; and the like in URLs into characters (default: False)
        url_col: column of the URLs, or a path: image.url, images[].url; image:image_url,mask:mask_url for rows with several (default: url)
        require: of several URLs in a row: all have to be there, any of them, or names: image,mask (default: all)
        caption_col: column of the captions (default: None)
        save_additional_columns: columns to carry into the metadata; id,width:original_width renames; '*' is all (default: None)
        limit: the first N rows only; the same command without it makes the rest (default: all)
        shuffle: seed of a random order of rows: of a whole parquet list, else within 100,000 rows (default: the list's order)
        column_types: Arrow types of columns: id:string,score:float (default: None)
        on_bad_row: of malformed rows: fail_row, as bad_row; stop, which reads up to there (default: fail_row)
    What is written:
        preset: img2dataset: that tool's option names, defaults and metadata (default: None)
        output_folder: folder for the dataset, local or remote (s3://bucket/name) (default: files)
        output_format: files, webdataset, parquet, tfrecord or arrayrecord (default: files)
        incremental_mode: with shards there: incremental makes what is missing, extend adds a list, overwrite begins anew (default: incremental)
        metadata_format: parquet always; csv and jsonl in addition (default: parquet)
        row_group_bytes: bytes of files in a row group of parquet (needs output_format=parquet) (default: 4MiB)
        parquet_data: column of files: binary; image or audio, as Hugging Face's (needs output_format=parquet) (default: binary)
        data_column: column of files in parquet (needs output_format=parquet|tfrecord|arrayrecord) (default: data)
        number_sample_per_shard: rows in a shard (default: 10000)
        oom_shard_count: digits of the shard number (default: 5)
        key_col: column with an id that names each sample (default: numbers)
        file_ext: extension of files; auto: by their content (default: auto)
        compute_md5: add the md5 of files to the metadata (default: True)
        compute_hash: add another hash: md5, sha256 or sha512 (default: None)
        verify_hash: column with the hash of each file, and its kind: checksum:sha256 (default: None)
        on_hash_mismatch: another hash: fail_row; drop, not stored; flag, stored and marked (needs verify_hash) (default: fail_row)
        dedupe: fetch a URL of several rows once per shard, once per run, or for each row (none) (default: shard)
    How it is stored:
        staging_dir: local folder of unpublished shards (default: .any2ds/tmp of a local dataset, else temp)
        fsync: flush published files, so that a power failure leaves no partial shard (default: True)
        min_free_bytes: bytes to leave free (default: 256MiB, at most 2 %)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
    What becomes of the files:
        file_size: size of images in pixels (see resize_mode); 0 keeps them (not with resize_mode=no) (default: originals are kept)
        decode_check: decode files: damaged ones fail as not_decodable; adds width, duration … to the metadata (default: False)
        disable_all_reencoding: decode nothing: store all byte for byte (default: False)
        unpack: files in archives (zip, tar, gz …) become samples (default: False)
        unpack_max_bytes: what unpacks to more fails (needs unpack, audio_*, video_*, clip* or frame*) (default: 1GiB)
        extract_text: store the text of web pages and PDF files as .txt (default: False)
        transform: steps of your own: module:function, or my_step.py:clean (default: None)
        member_options: other options for a URL column: mask:encode_format=png,file_size=0 (default: None)
    What becomes of images:
        resize_mode: file_size is the shorter side: keep_ratio; the longer: keep_ratio_largest; a square: center_crop, border (needs file_size) (default: keep_ratio)
        resize_only_if_bigger: keep small images (needs file_size) (default: True)
        upscale_interpolation: for enlarging images (needs file_size and resize_only_if_bigger=False) (default: lanczos)
        downscale_interpolation: for shrinking images; nearest_exact for masks (needs file_size) (default: area)
        encode_format: jpg, png, webp, avif, or keep (default: keep)
        encode_quality: 1 to 100; of png 0 to 9, its compression (needs file_size, encode_format, skip_reencode=False, bbox_col, animated, frames or frame_interval) (default: 95)
        skip_reencode: keep the bytes of unchanged images (default: True)
        only_images: what is no image fails as not_decodable (default: False)
        min_image_size: a side of fewer pixels fails as too_small (default: 0)
        max_image_area: more pixels fail as too_many_pixels (default: 200 million)
        max_aspect_ratio: longer / shorter side, at most (default: no limit)
        extract_exif: add EXIF to the metadata, as JSON (default: False)
        bbox_col: column of boxes to blur: [[left, top, right, bottom], …], parts of width and height (default: None)
        animated: of animated images: first, a still one; keep, the file (default: first if images are resized or encoded)
    What becomes of sound:
        audio_rate: sample rate of sound files in Hz; of video with video_audio=split (default: None)
        audio_channels: 1 for mono, 2 for stereo; of the same files (default: None)
        audio_format: flac, ogg, opus, mp3, wav or keep (default: keep)
        min_duration: seconds; shorter files fail as too_short (default: 0)
        max_duration: seconds; longer ones fail as too_long; 0: no limit (default: None)
        audio_trim: seconds to keep from the start of sound; 0: all (default: 0)
    What becomes of video:
        video_size: shorter side in pixels; 0 keeps it (default: 0)
        video_fps: frames per second (default: None)
        video_format: mp4, webm, mkv or keep (default: keep)
        clip_seconds: cut sound and video into so many seconds; 0: no (default: 0)
        clips_col: column of [start, end] pairs in seconds, each a sample of sound or video (default: None)
        frames: store so many evenly spaced images in place of a video; 0: none (default: 0)
        frame_interval: store an image every so many seconds in place of a video; 0: none (default: 0)
        video_audio: sound of video: keep; drop; or split, into a file of its own (default: keep)
    How it is fetched:
        thread_count: transfers in flight per process, or auto (default: auto)
        timeout: seconds until the first byte, redirects included, and between bytes; 0: no limit (default: 10)
        total_timeout: seconds for an attempt; 0: no limit (default: by the size)
        retries: further attempts after a transient failure (default: 0)
        connect_timeout: seconds until connected; 0: no limit of its own (default: 0)
        stall_timeout: seconds below 100 bytes per second; 0: any (default: 30)
        max_per_host: transfers at once to a host, of all processes of a machine (default: adapted to each host)
        host_delay: seconds between two transfers to a host (default: 0)
        max_retry_after: seconds to wait for Retry-After, at most (default: 120)
        watchdog_timeout: seconds without progress until others go on; 0: never (default: by the other limits)
        max_file_bytes: larger bodies fail as too_large (default: 1GiB)
        max_buffered_bytes: bytes of memory for bodies, per process; more wait on disk (default: 1GiB)
        user_agent: User-Agent header (default: any2ds/0.1.0 (+https://github.com/any2ds/any2ds))
        headers: further request headers: 'Referer: https://a, X-Key: b' (default: None)
        referer_col: column sent as the Referer of each file (default: None)
        proxy: for all requests: http://, https:// or socks5h:// (default: None)
        nameservers: name servers: 1.1.1.1,8.8.8.8; os: the system looks up all names (default: those of the system)
        ignore_ssl_certificate: accept any certificate of servers (default: False)
        disallowed_header_directives: X-Robots-Tag directives that exclude a file; None for none (default: noai,noimageai,noindex,noimageindex)
        robots: robots.txt: public respects it on the public web, respect everywhere, ignore nowhere (default: public)
        allow_schemes: further schemes of rows, read with your rights and credentials: file,s3 (default: none)
        block_private_addresses: refuse loopback and private addresses (default: False)
        allow_link_local: fetch from link-local addresses, metadata services (not with block_private_addresses) (default: False)
        hosts: other options for some hosts, in a --config file: {'*.example.org': {max_per_host: 2}} (default: None)
    How the work is shared out:
        processes_count: worker processes, no more than shards (default: number of cores, fewer for small lists)
        distributor: multiprocessing; inline for debugging; pyspark, ray or beam for clusters (default: multiprocessing)
        ray_address: host:port, ray://host:10001, or auto (needs distributor=ray) (default: RAY_ADDRESS, else this machine)
        beam_options: flags of Beam: --runner=DataflowRunner,--project=… (needs distributor=beam) (default: this machine)
        subjob_size: shards that a cluster is given in one job (not with distributor=inline and not distributor=multiprocessing) (default: 1000)
        max_shard_retry: retries of a shard, also if its process died (default: 3)
        grace: seconds to finish shards after Ctrl-C, SIGTERM (default: 10)
        transform_threads: threads per process that decode and encode (default: cores / processes; 1 on a cluster)
        transform_timeout: seconds for a file, or batch, before it fails as transform_timeout; 0: no limit (default: 300)
        log_level: debug, info, warning or error (default: warning)
        quiet: no progress and no report on the terminal (default: False)
    How several runs make a dataset together:
        rank: number of this run, from 0, of several that make a dataset (default: by Slurm, torchrun, Kubernetes)
        world_size: number of these runs; 1 for a run of its own (default: SLURM_NTASKS, WORLD_SIZE)
    How it is watched:
        log_interval: seconds between progress lines, and records (default: 10)
        log_format: of progress lines: text, or json (default: text)
        report: write report.html into the output folder (default: True)
        reporters: further reporters: jsonl, prometheus, wandb (default: None)
        metrics_port: port for Prometheus, which it turns on; 0: any (default: None)
        enable_wandb: report to Weights & Biases, like --reporters=wandb (default: False)
        wandb_project: project in Weights & Biases (needs enable_wandb or reporters=wandb) (default: any2ds)
    What is estimated:
        sample: rows that are fetched, at most 4 a second of a host, for 10 or 30 s (default: 2000)
        from_dataset: a dataset that is the sample, such as that of a --limit run; also --from (default: None)
        machines: numbers of machines like this one (default: 1,4,16)
        bandwidth: of the line of each machine: 100Mbit, 1Gbit (default: 1Gbit)
        sample_folder: folder for the dataset of the sample (default: estimate-sample)
        json: file for the prediction as JSON, - for standard output (default: None)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the estimate; its sample is a dataset in `sample_folder`. Raises UsageError if the list cannot be read or
    is empty, and RunError if no row of the sample could be fetched."""

def verify(
    output_folder: str | Path,
    *,
    sample: str | float | None = None,
    seed: int | None = None,
    repair: bool = False,
    json: str | Path | None = None,
    processes_count: int | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    quiet: bool = False,
    config: str | Path | None = None,
) -> VerifyReport:
    """Check a dataset: that every shard is there and complete, and that data, metadata and statistics agree.

    What is verified:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        sample: shards to read, picked at random: 1%, or a number; files and counts of all are checked (default: all)
        seed: picks the same shards again (needs sample) (default: another one each time)
        repair: remove the files of broken shards, so that they are made again (default: False)
        json: file for the report as JSON, - for standard output (default: None)
        processes_count: processes that read shards (default: number of cores)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
        quiet: no progress on the terminal (default: False)
        config: YAML or JSON file with any of these; what is given here wins

    Returns what was checked, with `findings`, and `ok` if there are none. Raises UsageError for a folder that
    holds no dataset, and for repairing one that any2ds did not make or that a run is at work in."""

def inspect(
    output_folder: str | Path,
    *,
    samples: int = 5,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    json: str | Path | None = None,
    config: str | Path | None = None,
) -> Summary:
    """Say what is in a dataset: how many rows, what became of them, how much they take, and some samples.

    What is looked at:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        samples: rows that are shown (default: 5)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
        json: file for all of it as JSON, - for standard output (default: None)
        config: YAML or JSON file with any of these; what is given here wins

    Raises UsageError for a folder that holds no dataset."""

def report(
    output_folder: str | Path,
    *,
    format: Literal["html", "md", "json"] = "html",
    output: str | Path | None = None,
    samples: int = 64,
    open: bool = False,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    config: str | Path | None = None,
) -> Summary:
    """Write down what has become of a dataset: a page of HTML that needs nothing else, or its figures.

    What is reported:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        format: html, a page; md, for pull requests; or json (default: html)
        output: file to write to, - for standard output (default: report.html; of md and json -)
        samples: samples that the page shows (needs format=html) (default: 64)
        open: show the page in a browser (needs format=html) (default: False)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the summary. Raises UsageError for a folder that holds no dataset, or a file that cannot be written."""

def card(
    output_folder: str | Path,
    *,
    pretty_name: str | None = None,
    license: str | None = None,
    language: str | _Sequence[str] | None = None,
    output: str | Path | None = None,
    force: bool = False,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    config: str | Path | None = None,
) -> Card:
    """Write a README.md that tells what is in a dataset, with the header that `datasets.load_dataset` goes by.

    What the card says:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        pretty_name: name of the dataset for people (default: that of the folder)
        license: of the dataset, as the Hugging Face Hub calls it: cc-by-4.0, mit … (default: None)
        language: of captions and texts, as codes: en, de (default: None)
        output: file for the card, - for standard output (default: README.md of the dataset)
        force: replace a README.md that any2ds did not write (default: False)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the card and where it was written. Raises UsageError for a folder that holds no dataset, and for a
    README.md that any2ds did not write."""

def add_columns(
    output_folder: str | Path,
    url_list: Any,
    *,
    on: str = "url",
    add: str | _Sequence[str] | None = None,
    input_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    rows: str | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    config: str | Path | None = None,
) -> ColumnsAdded:
    """Add columns of a list to the metadata of a finished dataset: a join by key or URL that fetches nothing.

    What is added:
        output_folder: folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built (default: required)
        url_list: list with the columns: file, folder or glob, local or remote (default: required)
        on: column that both have: key, url, or dataset_column:list_column (default: url)
        add: columns of the list that are added (default: all)
        input_format: txt, csv, tsv, json, jsonl, parquet; csv.gz where compressed (default: by the file name)
        separator: between the values of a line (default: a comma; in tsv a tab)
        encoding: of a list that is text (default: utf-8, or by its mark)
        rows: path to the array of rows in a json document (default: the document)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
        config: YAML or JSON file with any of these; what is given here wins

    Returns how many rows have the columns. Raises UsageError for a folder that holds no dataset, a list that cannot
    be read, and columns that are not there."""

def build(
    recipe: Any,
    *,
    data_dir: str | Path | None = None,
    imports: str | _Sequence[str] | None = None,
    overwrite: bool = False,
    max_examples_per_split: int | None = None,
    register_checksums: bool = False,
    download_dir: str | Path | None = None,
    manual_dir: str | Path | None = None,
    preset: Literal["img2dataset"] | None = None,
    output_folder: str | Path = "files",
    output_format: Literal["arrayrecord", "dummy", "files", "parquet", "tfrecord", "webdataset"] = "webdataset",
    incremental_mode: Literal["incremental", "extend", "overwrite"] = "incremental",
    metadata_format: str | _Sequence[Literal["parquet", "csv", "jsonl"]] = ("parquet",),
    row_group_bytes: int | str = 4194304,
    parquet_data: Literal["binary", "image", "audio"] = "binary",
    data_column: str = "data",
    number_sample_per_shard: int = 10000,
    oom_shard_count: int = 5,
    key_col: str | None = None,
    file_ext: str = "auto",
    compute_md5: bool = True,
    compute_hash: Literal["md5", "sha256", "sha512"] | None = None,
    verify_hash: str | _Sequence[str] | Mapping[str, str | _Sequence[str]] | None = None,
    on_hash_mismatch: Literal["drop", "flag", "fail_row"] = "fail_row",
    dedupe: Literal["shard", "run", "none"] = "shard",
    staging_dir: str | Path | None = None,
    fsync: bool = True,
    min_free_bytes: int | str | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    file_size: int | None = None,
    decode_check: bool = False,
    disable_all_reencoding: bool = False,
    unpack: bool = False,
    unpack_max_bytes: int | str = 1073741824,
    extract_text: bool = False,
    transform: str | Callable[..., Any] | _Sequence[str | Callable[..., Any]] | None = None,
    member_options: Mapping[str, Mapping[str, Any]] | str | None = None,
    resize_mode: Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"] = "keep_ratio",
    resize_only_if_bigger: bool = True,
    upscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "lanczos",
    downscale_interpolation: Literal["nearest", "nearest_exact", "linear", "cubic", "area", "lanczos"] = "area",
    encode_format: Literal["keep", "jpg", "png", "webp", "avif"] = "keep",
    encode_quality: int = 95,
    skip_reencode: bool = True,
    only_images: bool = False,
    min_image_size: int = 0,
    max_image_area: float = 200000000,
    max_aspect_ratio: float | None = None,
    extract_exif: bool = False,
    bbox_col: str | None = None,
    animated: Literal["first", "keep"] | None = None,
    audio_rate: int | None = None,
    audio_channels: int | None = None,
    audio_format: Literal["keep", "flac", "ogg", "opus", "mp3", "wav"] = "keep",
    min_duration: float = 0.0,
    max_duration: float | None = None,
    audio_trim: float = 0.0,
    video_size: int = 0,
    video_fps: float | None = None,
    video_format: Literal["keep", "mp4", "webm", "mkv"] = "keep",
    clip_seconds: float = 0.0,
    clips_col: str | None = None,
    frames: int = 0,
    frame_interval: float = 0.0,
    video_audio: Literal["keep", "drop", "split"] = "keep",
    thread_count: int | Literal["auto"] = "auto",
    timeout: float = 10.0,
    total_timeout: float | None = None,
    retries: int = 0,
    connect_timeout: float = 0.0,
    stall_timeout: float = 30.0,
    max_per_host: int = 1000000,
    host_delay: float = 0.0,
    max_retry_after: float = 120.0,
    watchdog_timeout: float | None = None,
    max_file_bytes: int | str = 1073741824,
    max_buffered_bytes: int | str = 1073741824,
    user_agent: str = "any2ds/0.1.0 (+https://github.com/any2ds/any2ds)",
    headers: str | _Sequence[str] | Mapping[str, str] | None = None,
    referer_col: str | None = None,
    proxy: str | None = None,
    nameservers: str | _Sequence[str] | None = None,
    ignore_ssl_certificate: bool = False,
    disallowed_header_directives: str | _Sequence[str] | None = ("noai", "noimageai", "noindex", "noimageindex"),
    robots: Literal["public", "respect", "ignore"] = "public",
    allow_schemes: str
    | _Sequence[
        Literal[
            "abfs",
            "abfss",
            "adl",
            "az",
            "file",
            "gcs",
            "gs",
            "hdfs",
            "hf",
            "memory",
            "oci",
            "oss",
            "s3",
            "s3a",
            "sftp",
            "smb",
            "ssh",
            "tos",
            "webhdfs",
        ]
    ]
    | None = None,
    block_private_addresses: bool = False,
    allow_link_local: bool = False,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    processes_count: int | None = None,
    distributor: Literal["beam", "inline", "multiprocessing", "pyspark", "ray"] = "multiprocessing",
    ray_address: str | None = None,
    beam_options: str | _Sequence[str] | None = None,
    subjob_size: int = 1000,
    max_shard_retry: int = 3,
    grace: float = 10.0,
    transform_threads: int | None = None,
    transform_timeout: float = 300.0,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    quiet: bool = False,
    log_interval: float = 10.0,
    log_format: Literal["text", "json"] = "text",
    report: bool = True,
    reporters: str | _Sequence[Literal["console", "jsonl", "prometheus", "wandb"]] | None = None,
    metrics_port: int | None = None,
    enable_wandb: bool = False,
    wandb_project: str = "any2ds",
    config: str | Path | None = None,
) -> RunReport:
    """Make the dataset of a recipe in `data_dir`/name/config/version.

    A build that was interrupted goes on, and a dataset that is there already is not made again.

    Which recipe:
        recipe: name[/config][:version] of a recipe, or the path of its file (default: required)
        data_dir: folder for datasets, local or remote (default: ANY2DS_DATA_DIR, else ~/any2ds)
        imports: modules that define recipes (default: None)
        overwrite: make a dataset anew that is there already (default: False)
        max_examples_per_split: the first N samples of each split only (default: all)
        register_checksums: write the checksums of downloads to the recipe's checksums.tsv (default: False)
        download_dir: folder for what a recipe downloads and unpacks (default: recipes in the cache folder)
        manual_dir: folder with what was downloaded by hand (default: manual/NAME in data_dir)
    What is written:
        preset: img2dataset: that tool's option names, defaults and metadata (default: None)
        output_folder: folder for the dataset, local or remote (s3://bucket/name) (default: files)
        output_format: webdataset, parquet, files, tfrecord or arrayrecord (default: webdataset)
        incremental_mode: with shards there: incremental makes what is missing, extend adds a list, overwrite begins anew (default: incremental)
        metadata_format: parquet always; csv and jsonl in addition (default: parquet)
        row_group_bytes: bytes of files in a row group of parquet (needs output_format=parquet) (default: 4MiB)
        parquet_data: column of files: binary; image or audio, as Hugging Face's (needs output_format=parquet) (default: binary)
        data_column: column of files in parquet (needs output_format=parquet|tfrecord|arrayrecord) (default: data)
        number_sample_per_shard: rows in a shard (default: 10000)
        oom_shard_count: digits of the shard number (default: 5)
        key_col: column with an id that names each sample (default: numbers)
        file_ext: extension of files; auto: by their content (default: auto)
        compute_md5: add the md5 of files to the metadata (default: True)
        compute_hash: add another hash: md5, sha256 or sha512 (default: None)
        verify_hash: column with the hash of each file, and its kind: checksum:sha256 (default: None)
        on_hash_mismatch: another hash: fail_row; drop, not stored; flag, stored and marked (needs verify_hash) (default: fail_row)
        dedupe: fetch a URL of several rows once per shard, once per run, or for each row (none) (default: shard)
    How it is stored:
        staging_dir: local folder of unpublished shards (default: .any2ds/tmp of a local dataset, else temp)
        fsync: flush published files, so that a power failure leaves no partial shard (default: True)
        min_free_bytes: bytes to leave free (default: 256MiB, at most 2 %)
        storage_options: credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}} (default: None)
    What becomes of the files:
        file_size: size of images in pixels (see resize_mode); 0 keeps them (not with resize_mode=no) (default: originals are kept)
        decode_check: decode files: damaged ones fail as not_decodable; adds width, duration … to the metadata (default: False)
        disable_all_reencoding: decode nothing: store all byte for byte (default: False)
        unpack: files in archives (zip, tar, gz …) become samples (default: False)
        unpack_max_bytes: what unpacks to more fails (needs unpack, audio_*, video_*, clip* or frame*) (default: 1GiB)
        extract_text: store the text of web pages and PDF files as .txt (default: False)
        transform: steps of your own: module:function, or my_step.py:clean (default: None)
        member_options: other options for a URL column: mask:encode_format=png,file_size=0 (default: None)
    What becomes of images:
        resize_mode: file_size is the shorter side: keep_ratio; the longer: keep_ratio_largest; a square: center_crop, border (needs file_size) (default: keep_ratio)
        resize_only_if_bigger: keep small images (needs file_size) (default: True)
        upscale_interpolation: for enlarging images (needs file_size and resize_only_if_bigger=False) (default: lanczos)
        downscale_interpolation: for shrinking images; nearest_exact for masks (needs file_size) (default: area)
        encode_format: jpg, png, webp, avif, or keep (default: keep)
        encode_quality: 1 to 100; of png 0 to 9, its compression (needs file_size, encode_format, skip_reencode=False, bbox_col, animated, frames or frame_interval) (default: 95)
        skip_reencode: keep the bytes of unchanged images (default: True)
        only_images: what is no image fails as not_decodable (default: False)
        min_image_size: a side of fewer pixels fails as too_small (default: 0)
        max_image_area: more pixels fail as too_many_pixels (default: 200 million)
        max_aspect_ratio: longer / shorter side, at most (default: no limit)
        extract_exif: add EXIF to the metadata, as JSON (default: False)
        bbox_col: column of boxes to blur: [[left, top, right, bottom], …], parts of width and height (default: None)
        animated: of animated images: first, a still one; keep, the file (default: first if images are resized or encoded)
    What becomes of sound:
        audio_rate: sample rate of sound files in Hz; of video with video_audio=split (default: None)
        audio_channels: 1 for mono, 2 for stereo; of the same files (default: None)
        audio_format: flac, ogg, opus, mp3, wav or keep (default: keep)
        min_duration: seconds; shorter files fail as too_short (default: 0)
        max_duration: seconds; longer ones fail as too_long; 0: no limit (default: None)
        audio_trim: seconds to keep from the start of sound; 0: all (default: 0)
    What becomes of video:
        video_size: shorter side in pixels; 0 keeps it (default: 0)
        video_fps: frames per second (default: None)
        video_format: mp4, webm, mkv or keep (default: keep)
        clip_seconds: cut sound and video into so many seconds; 0: no (default: 0)
        clips_col: column of [start, end] pairs in seconds, each a sample of sound or video (default: None)
        frames: store so many evenly spaced images in place of a video; 0: none (default: 0)
        frame_interval: store an image every so many seconds in place of a video; 0: none (default: 0)
        video_audio: sound of video: keep; drop; or split, into a file of its own (default: keep)
    How it is fetched:
        thread_count: transfers in flight per process, or auto (default: auto)
        timeout: seconds until the first byte, redirects included, and between bytes; 0: no limit (default: 10)
        total_timeout: seconds for an attempt; 0: no limit (default: by the size)
        retries: further attempts after a transient failure (default: 0)
        connect_timeout: seconds until connected; 0: no limit of its own (default: 0)
        stall_timeout: seconds below 100 bytes per second; 0: any (default: 30)
        max_per_host: transfers at once to a host, of all processes of a machine (default: adapted to each host)
        host_delay: seconds between two transfers to a host (default: 0)
        max_retry_after: seconds to wait for Retry-After, at most (default: 120)
        watchdog_timeout: seconds without progress until others go on; 0: never (default: by the other limits)
        max_file_bytes: larger bodies fail as too_large (default: 1GiB)
        max_buffered_bytes: bytes of memory for bodies, per process; more wait on disk (default: 1GiB)
        user_agent: User-Agent header (default: any2ds/0.1.0 (+https://github.com/any2ds/any2ds))
        headers: further request headers: 'Referer: https://a, X-Key: b' (default: None)
        referer_col: column sent as the Referer of each file (default: None)
        proxy: for all requests: http://, https:// or socks5h:// (default: None)
        nameservers: name servers: 1.1.1.1,8.8.8.8; os: the system looks up all names (default: those of the system)
        ignore_ssl_certificate: accept any certificate of servers (default: False)
        disallowed_header_directives: X-Robots-Tag directives that exclude a file; None for none (default: noai,noimageai,noindex,noimageindex)
        robots: robots.txt: public respects it on the public web, respect everywhere, ignore nowhere (default: public)
        allow_schemes: further schemes of rows, read with your rights and credentials: file,s3 (default: none)
        block_private_addresses: refuse loopback and private addresses (default: False)
        allow_link_local: fetch from link-local addresses, metadata services (not with block_private_addresses) (default: False)
        hosts: other options for some hosts, in a --config file: {'*.example.org': {max_per_host: 2}} (default: None)
    How the work is shared out:
        processes_count: worker processes, no more than shards (default: number of cores, fewer for small lists)
        distributor: multiprocessing; inline for debugging; pyspark, ray or beam for clusters (default: multiprocessing)
        ray_address: host:port, ray://host:10001, or auto (needs distributor=ray) (default: RAY_ADDRESS, else this machine)
        beam_options: flags of Beam: --runner=DataflowRunner,--project=… (needs distributor=beam) (default: this machine)
        subjob_size: shards that a cluster is given in one job (not with distributor=inline and not distributor=multiprocessing) (default: 1000)
        max_shard_retry: retries of a shard, also if its process died (default: 3)
        grace: seconds to finish shards after Ctrl-C, SIGTERM (default: 10)
        transform_threads: threads per process that decode and encode (default: cores / processes; 1 on a cluster)
        transform_timeout: seconds for a file, or batch, before it fails as transform_timeout; 0: no limit (default: 300)
        log_level: debug, info, warning or error (default: warning)
        quiet: no progress and no report on the terminal (default: False)
    How it is watched:
        log_interval: seconds between progress lines, and records (default: 10)
        log_format: of progress lines: text, or json (default: text)
        report: write report.html into the output folder (default: True)
        reporters: further reporters: jsonl, prometheus, wandb (default: None)
        metrics_port: port for Prometheus, which it turns on; 0: any (default: None)
        enable_wandb: report to Weights & Biases, like --reporters=wandb (default: False)
        wandb_project: project in Weights & Biases (needs enable_wandb or reporters=wandb) (default: any2ds)
        config: YAML or JSON file with any of these; what is given here wins

    Returns the figures of the run. Raises UsageError if it cannot start or the recipe is wrong, and IncompleteRun if
    shards could not be written."""
