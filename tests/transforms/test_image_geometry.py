"""Sizes of images, as img2dataset 1.47 makes them of images of these shapes; and reductions."""

import pytest

from any2ds.transforms.image.geometry import Fit, Sizing, reduction

MODES = ("keep_ratio", "keep_ratio_largest", "center_crop", "border")
# Width and height -> what it becomes in each of the modes; None: it stays as it is.
ONLY_IF_BIGGER = {
    (300, 200): (None, (256, 171), None, (256, 256)),
    (640, 427): ((384, 256), (256, 171), (256, 256), (256, 256)),
    (383, 255): (None, (256, 170), None, (256, 256)),
    (1025, 769): ((341, 256), (256, 192), (256, 256), (256, 256)),
    (1000, 31): (None, (256, 8), None, (256, 256)),
    (256, 256): (None, None, None, None),
    (257, 256): (None, (256, 255), None, (256, 256)),
    (100, 50): (None, None, None, None),
}
ALWAYS = {
    (300, 200): ((384, 256), (256, 171), (256, 256), (256, 256)),
    (100, 50): ((512, 256), (256, 128), (256, 256), (256, 256)),
    (1000, 31): ((8258, 256), (256, 8), (256, 256), (256, 256)),
    (500, 3): ((42667, 256), (256, 2), (256, 256), (256, 256)),
    (1, 1): ((256, 256), (256, 256), (256, 256), (256, 256)),
    (256, 256): (None, None, None, None),
}
CASES = [
    (shape, mode, only_if_bigger, final)
    for only_if_bigger, table in ((True, ONLY_IF_BIGGER), (False, ALWAYS))
    for shape, finals in table.items()
    for mode, final in zip(MODES, finals, strict=True)
]


@pytest.mark.parametrize(("shape", "mode", "only_if_bigger", "final"), CASES)
def test_an_image_gets_the_size_that_img2dataset_gives_it(
    shape: tuple[int, int], mode: str, only_if_bigger: bool, final: tuple[int, int] | None
) -> None:
    fit = Sizing(mode, 256, only_if_bigger).fit(*shape)
    assert (fit and fit.final) == final
    turned = Sizing(mode, 256, only_if_bigger).fit(*shape[::-1])
    assert (turned and turned.final) == (final and final[::-1])


def test_halves_are_rounded_to_even() -> None:
    assert Sizing("keep_ratio_largest", 100, True).fit(200, 1) == Fit(100, 1)  # at least one pixel
    assert Sizing("keep_ratio_largest", 100, True).fit(200, 5) == Fit(100, 2)
    assert Sizing("keep_ratio_largest", 100, True).fit(200, 7) == Fit(100, 4)


@pytest.mark.parametrize("sizing", [Sizing("no", 256, False), Sizing("keep_ratio", 0, False)])
def test_nothing_is_resized_if_nobody_asks(sizing: Sizing) -> None:
    assert sizing.fit(1000, 1000) is None


@pytest.mark.parametrize(
    ("width", "height", "by"), [(511, 511, 1), (512, 512, 2), (1023, 1024, 2), (1024, 1024, 4), (9000, 6000, 8)]
)
def test_no_more_is_left_out_in_decoding_than_resizing_leaves_out(width: int, height: int, by: int) -> None:
    fit = Sizing("keep_ratio", 256, True).fit(width, height)
    assert fit is not None
    assert reduction(width, height, fit) == by
