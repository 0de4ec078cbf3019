"""Makes the pictures of the README: docs/images/run.svg, a recording of a run, and report.png, its report.

    python tools/pictures.py

The run is a real one, of the demo's list from a server on this machine that is slowed down a little, so that there is
something to see. It needs what the tests need, and Chromium.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from demo_server import demo_urls  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLUMNS, LINES = 96, 22
INTERVAL = 0.6  # seconds between frames, at least
MOST_FRAMES = 12  # each takes some 20 KB
PAUSE = 5.0  # seconds for which the last frame stands
COMMAND = ["urls.csv", "dataset", "--output_format=webdataset", "--caption_col=caption", "--file_size=256"]


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, demo_urls() as urls:
        shutil.copy(urls, Path(folder) / "urls.csv")
        options = ["--retries=1", "--timeout=2", "--number_sample_per_shard=50"]
        frames = recorded([*COMMAND, *options], Path(folder), f"$ any2ds {' '.join(COMMAND)}")
        (IMAGES / "run.svg").write_text(animated(thinned(frames)), encoding="utf-8")
        page = Path(folder) / "dataset" / "report.html"
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,1180"]
        subprocess.run(
            [*command, f"--screenshot={IMAGES / 'report.png'}", page.as_uri()], check=True, stderr=subprocess.DEVNULL
        )
    return 0


def recorded(arguments: Sequence[str], folder: Path, prompt: str) -> list[tuple[float, Text]]:
    """What a terminal shows, whenever it has changed: seconds since the start, and the screen."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"{prompt}\r\n".encode())
    frames = [(0.0, text_of(screen))]
    started = time.monotonic()
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execve(
            sys.executable, [sys.executable, "-m", "any2ds", *arguments], {**environment, "PYTHONPATH": str(ROOT)}
        )
    while True:
        readable, _, _ = select.select([terminal], [], [], 0.2)
        try:
            if readable:
                stream.feed(os.read(terminal, 65536))
        except OSError:  # the end of the run
            break
        shown = text_of(screen)
        if shown.plain.strip() and shown != frames[-1][1] and time.monotonic() - started > frames[-1][0] + INTERVAL:
            frames.append((time.monotonic() - started, shown))
    os.waitpid(child, 0)
    return [*frames, (time.monotonic() - started, text_of(screen))]


def thinned(frames: Sequence[tuple[float, Text]]) -> Sequence[tuple[float, Text]]:
    """`MOST_FRAMES` of them, evenly from the first to the last."""
    most = min(MOST_FRAMES, len(frames))
    return [frames[n * (len(frames) - 1) // (most - 1)] for n in range(most)]


def text_of(screen: pyte.Screen) -> Text:
    lines = []
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            color = "" if cell.fg == "default" else f"#{cell.fg}" if re.fullmatch("[0-9a-f]{6}", cell.fg) else cell.fg
            color = {"brown": "yellow", "brightbrown": "bright_yellow"}.get(color, color)
            line.append(cell.data, f"{'bold ' if cell.bold else ''}{color}".strip())
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def animated(frames: Sequence[tuple[float, Text]]) -> str:
    """One SVG that shows a frame after the other, for ever."""
    ends = [start for start, _ in frames[1:]] + [frames[-1][0] + PAUSE]
    whole = ends[-1]
    parts = []
    for number, ((start, text), end) in enumerate(zip(frames, ends, strict=True)):
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(text, soft_wrap=True)
        svg = console.export_svg(title="any2ds", unique_id=f"frame-{number}")
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # of another site
        times = f'keyTimes="0;{start / whole:.4f};{end / whole:.4f}" values="none;inline;none"' if start else ""
        times = times or f'keyTimes="0;{end / whole:.4f}" values="inline;none"'
        shown = f'<animate attributeName="display" dur="{whole:.1f}s" repeatCount="indefinite"'
        shown += f' calcMode="discrete" {times}/>'
        parts.append(f'<g display="{"inline" if end == whole else "none"}">{shown}{svg}</g>')
    box = re.search(r'viewBox="([^"]+)"', parts[0])
    assert box is not None
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}">{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    sys.exit(main())
