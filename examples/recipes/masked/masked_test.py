"""Tries the recipe on images and masks of a server on this machine."""

from masked import LIST, Masked

from any2ds.testing import RecipeTestCase


class TestMasked(RecipeTestCase):
    RECIPE = Masked
    SPLITS = {"train": 2}
    CHECKS_CHECKSUMS = False  # the list is made by the test

    @classmethod
    def dummy_data(cls):
        pairs = zip(cls.serve("images"), cls.serve("masks"), strict=True)
        return {LIST: cls.list_of([{"image_url": i, "mask_url": m, "caption": "two"} for i, m in pairs])}
