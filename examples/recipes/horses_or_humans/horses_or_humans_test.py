"""Tries the recipe on two small archives."""

from horses_or_humans import TEST, TRAIN, HorsesOrHumans

from any2ds.testing import RecipeTestCase


class TestHorsesOrHumans(RecipeTestCase):
    RECIPE = HorsesOrHumans
    SPLITS = {"train": 2, "test": 1}
    DUMMY_DATA = {TRAIN: "train.zip", TEST: "test.zip"}
    CHECKS_CHECKSUMS = False  # `any2ds build --register_checksums` writes them where the files can be fetched
