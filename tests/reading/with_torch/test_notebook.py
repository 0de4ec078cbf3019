"""examples/images_to_pytorch.ipynb, as it stands."""

from pathlib import Path

from tests.support.notebooks import run_as_script


def test_images_with_captions_train_a_model(tmp_path: Path) -> None:
    for _ in range(2):  # in the same folder
        printed = run_as_script("images_to_pytorch.ipynb", tmp_path)
        first, last = printed.splitlines()[-1].split(" after ")[0].split(" -> ")
        assert float(last) < float(first)
