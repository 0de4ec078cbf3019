"""The table of published lists in docs/lists.md: each command reads rows as that dataset has them."""

import gzip
import io
import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.play import ROOT, Play

COMMANDS = dict(re.findall(r"^\| ([^|]+?) \| `any2ds ([^`]+)` \|", (ROOT / "docs/lists.md").read_text(), re.MULTILINE))
ROWS = range(10)


def lines(row: str, header: str = "") -> Callable[[str], bytes]:
    """A text of ten rows, in which `{web}` is the web's address and `{i}` the number of the row."""
    return lambda web: (header + "".join(row.replace("{web}", web).replace("{i}", str(i)) for i in ROWS)).encode()


def packed(row: str, header: str = "") -> Callable[[str], bytes]:
    return lambda web: gzip.compress(lines(row, header)(web))


def table(**columns: Any) -> Callable[[str], bytes]:
    def written(web: str) -> bytes:
        rows = [{name: _of(value, web, i) for name, value in columns.items()} for i in ROWS]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue()

    return written


def document(make: Callable[[list[dict[str, Any]]], Any], **columns: Any) -> Callable[[str], bytes]:
    return lambda web: json.dumps(
        make([{name: _of(value, web, i) for name, value in columns.items()} for i in ROWS])
    ).encode()


def json_lines(**columns: Any) -> Callable[[str], bytes]:
    return lambda web: b"".join(
        json.dumps({name: _of(value, web, i) for name, value in columns.items()}).encode() + b"\n" for i in ROWS
    )


def _of(value: Any, web: str, i: int) -> Any:
    if isinstance(value, list):
        return [_of(part, web, i) for part in value]
    if isinstance(value, dict):
        return {key: _of(part, web, i) for key, part in value.items()}
    return value.replace("{web}", web).replace("{i}", str(i)) if isinstance(value, str) else value


# Dataset -> its list, the paths of its files below the host, and a caption that its first row has.
LISTS: dict[str, tuple[Callable[[str], bytes], str, str | None]] = {
    "CC3M": (lines('a "very" small cat , no {i}\t{web}{i}.jpg\n'), "{i}.jpg", 'a "very" small cat , no 0'),
    "CC12M": (lines('{web}{i}.jpg\t"Love" by <PERSON> {i}\n'), "{i}.jpg", '"Love" by <PERSON> 0'),
    "TGIF": (lines("{web}{i}.gif\ta man is glaring, and someone {i}\n"), "{i}.gif", "a man is glaring, and someone 0"),
    "LAION-400M, LAION-5B": (
        table(SAMPLE_ID=1, URL="{web}{i}.jpg", TEXT="a cat {i}", HEIGHT=3, WIDTH=4, similarity=0.3, NSFW="UNLIKELY"),
        "{i}.jpg",
        "a cat 0",
    ),
    "Re-LAION": (
        table(url="{web}{i}.jpg", caption="a dog {i}", similarity=0.4, hash=-17, punsafe=0.1, pwatermark=0.2, key="k"),
        "{i}.jpg",
        "a dog 0",
    ),
    "COYO-700M": (
        table(id=841814333321, url="{web}{i}.jpg", text="a {i}", width=5, height=6, image_phash="e1", word_count=2),
        "{i}.jpg",
        "a 0",
    ),
    "DataComp": (
        table(uid="06fd6eb5", url="{web}{i}.jpg", text="t {i}", original_width=9, clip_b32_similarity_score=0.2),
        "{i}.jpg",
        "t 0",
    ),
    "OBELICS": (table(images=["{web}{i}.jpg", None], texts=[None, "words"], general_metadata="x"), "{i}.jpg", None),
    "MINT-1T": (table(url="http://page/{i}", images=["{web}{i}.jpg"], texts=["words"]), "{i}.jpg", None),
    "MMC4": (
        json_lines(
            url="http://page/{i}",
            text_list=["words"],
            image_info=[{"image_name": "x", "raw_url": "{web}{i}.jpg", "matched_text_index": 0, "matched_sim": 0.3}],
        ),
        "{i}.jpg",
        None,
    ),
    "SBU Captions": (
        document(
            lambda rows: {
                "image_urls": [r["u"] for r in rows],
                "user_ids": [1] * 10,
                "captions": [r["c"] for r in rows],
            },
            u="{web}{i}.jpg",
            c="A bus {i}.",
        ),
        "{i}.jpg",
        "A bus 0.",
    ),
    "RedCaps": (
        document(
            lambda rows: {"info": {"version": "v1.0"}, "annotations": rows},
            image_id="bpzj7r",
            url="{web}{i}.jpg",
            raw_caption="My [pup] {i}",
            caption="my pup {i}",
            crosspost_parents=None,
        ),
        "{i}.jpg",
        "my pup 0",
    ),
    "COCO": (
        document(
            lambda rows: {"info": {"year": 2017}, "licenses": [{"id": 1}], "images": rows, "annotations": [{"id": 1}]},
            license=4,
            file_name="0.jpg",
            coco_url="{web}{i}.jpg",
            id=397133,
        ),
        "{i}.jpg",
        None,
    ),
    "COCO, Karpathy's splits": (
        document(
            lambda rows: {"dataset": "coco", "images": rows},
            filepath="val2014",
            filename="{i}.jpg",
            sentences=[{"raw": "A cat.", "tokens": ["a", "cat"]}, {"raw": "No dog."}],
            cocoid=1,
            split="test",
        ),
        "val2014/{i}.jpg",
        "A cat.",
    ),
    "Visual Genome": (
        document(
            lambda rows: rows, width=800, url="{web}{i}.jpg", height=600, image_id=1, coco_id=None, flickr_id=None
        ),
        "{i}.jpg",
        None,
    ),
    "WIT": (
        packed(
            'en\thttps://w/P\t{web}{i}.jpg\tPage "{i}"\t\tfrom the {i}\t\n',
            "language\tpage_url\timage_url\tpage_title\tsection_title\tcaption_reference_description\tx\n",
        ),
        "{i}.jpg",
        "from the 0",
    ),
    "YFCC100M": (
        lines("{i}\t42\t77%40N00\tanna\t2010-01-01\t1\tCanon\tSea\tat+the+sea\tsun\t\t\t\t\thttp://p\t{web}{i}.jpg\n"),
        "{i}.jpg",
        "at+the+sea",
    ),
    "Open Images": (
        lines(
            '000a{i},train,{web}{i}.jpg,https://p,https://l,https://a,"Jo, ""J""",Title,2038323,,\n',
            "ImageID,Subset,OriginalURL,OriginalLandingURL,License,AuthorProfileURL,Author,Title,OriginalSize,"
            "OriginalMD5,Thumbnail300KURL\n",
        ),
        "{i}.jpg",
        None,
    ),
    "AudioSet": (
        lines(
            'a{i}, 30.000, 40.000, "/m/09x0r,/t/dd00088"\n',
            "# Segments csv created Sun Mar  5 10:54:31 2017\n# num_ytids=22160\n# YTID, start_seconds\n",
        ),
        "watch/a{i}",
        None,
    ),
    "VGGSound": (lines('a{i},30,"playing bass, guitar",train\n'), "watch/a{i}", "playing bass, guitar"),
    "Freesound": (lines("{i},Anna,bell.wav\n", "id,username,name\n"), "people/Anna/sounds/{i}", "bell.wav"),
    "WebVid": (
        lines(
            '10{i},{web}{i}.mp4,PT00H00M10S,006_050,"Waves, slow {i}"\n', "videoid,contentUrl,duration,page_dir,name\n"
        ),
        "{i}.mp4",
        "Waves, slow 0",
    ),
    "Panda-70M": (
        lines(
            """a{i},{web}{i}.mp4,"[['0:00:00.000', '0:00:02.000']]","['a man, {i}']"\n""",
            "videoID,url,timestamp,caption\n",
        ),
        "{i}.mp4",
        "['a man, 0']",
    ),
    "MSR-VTT": (
        document(
            lambda rows: {"info": {"year": "2016"}, "videos": rows, "sentences": [{"caption": "x"}]},
            url="{web}{i}.mp4",
            video_id="video{i}",
            category=9,
            split="train",
        ),
        "{i}.mp4",
        None,
    ),
    "iNaturalist": (
        packed(
            "ba6-{i}\t{i}\t477\tjpg\tCC-BY\t2048\n", "photo_uuid\tphoto_id\tobserver_id\textension\tlicense\twidth\n"
        ),
        "photos/{i}/medium.jpg",
        None,
    ),
    "GBIF": (
        lines(
            '1052{i}\tStillImage\timage/jpeg\t{web}{i}.jpg\thttps://r\tA 5" leaf\n',
            "gbifID\ttype\tformat\tidentifier\treferences\tdescription\n",
        ),
        "{i}.jpg",
        'A 5" leaf',
    ),
    "PMC Open Access": (
        lines(
            'oa/0{i}.tar.gz,"Breast Cancer Res. 2001; 3(1):55-60",PMC1{i},2019-11-05 11:56:12,1125,NO-CC CODE\n',
            "File,Article Citation,Accession ID,Last Updated (YYYY-MM-DD HH:MM:SS),PMID,License\n",
        ),
        "pub/pmc/oa/0{i}.tar.gz",
        None,
    ),
    "Common Crawl, paths": (
        packed("crawl-data/CC-MAIN-2024-10/segments/{i}/warc/0.warc.gz\n"),
        "crawl-data/CC-MAIN-2024-10/segments/{i}/warc/0.warc.gz",
        None,
    ),
    "Common Crawl, index": (
        table(url_host_name="a.org", url="{web}{i}.pdf", fetch_status=200, content_mime_type="application/pdf"),
        "{i}.pdf",
        None,
    ),
    "ImageNet, fall 2011": (lines("n0000{i}_17\t{web}{i}.jpg\n"), "{i}.jpg", None),
    "Google Landmarks": (lines('"6e{i}","{web}{i}.jpg",142820\n', '"id","url","landmark_id"\n'), "{i}.jpg", None),
    "Unsplash": (
        lines(
            "XM{i}\thttps://u\t{web}{i}\tA 'stone' \"wall\"\n",
            "photo_id\tphoto_url\tphoto_image_url\tphoto_description\n",
        ),
        "{i}",
        "A 'stone' \"wall\"",
    ),
}


def test_the_table_has_all_of_these() -> None:
    assert list(COMMANDS) == list(LISTS)


@pytest.mark.parametrize("name", LISTS)
def test_the_command_of_the_table_reads_the_list(name: str) -> None:
    content, path, caption = LISTS[name]
    play = Play({path.replace("{i}", str(i)): "ok" for i in ROWS})
    listed, _, *words = shlex.split(re.sub(r"https?://[^/{]+/", play.web.base_url, COMMANDS[name]))
    (play.folder / listed).parent.mkdir(exist_ok=True)
    (play.folder / listed).write_bytes(content(play.web.base_url))
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    outcome = play.run("download", listed, **options)
    assert outcome.codes == {"success": 10}, outcome
    assert [row["url"].rpartition("/")[2] for row in outcome.metadata] == [
        path.replace("{i}", str(i)).rpartition("/")[2] for i in ROWS
    ]
    assert outcome.metadata[0].get("caption") == caption
