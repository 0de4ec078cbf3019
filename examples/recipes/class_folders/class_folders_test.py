"""Tries the recipe on two small archives."""

from class_folders import ClassFolders

from any2ds.testing import RecipeTestCase


class TestBoth(RecipeTestCase):
    RECIPE = ClassFolders
    CONFIGS = ("both",)
    SPLITS = {"train": 4, "test": 2}
    DUMMY_DATA = {"https://example.org/train.tar.gz": "train.tar.gz", "https://example.org/test.zip": "test.zip"}


class TestRoses(RecipeTestCase):
    RECIPE = ClassFolders
    CONFIGS = ("roses",)
    SPLITS = {"train": 2, "test": 1}
    DUMMY_DATA = TestBoth.DUMMY_DATA
