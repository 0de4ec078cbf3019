"""Tries the recipe on an archive in dummy_data/manual."""

from by_hand import ByHand

from any2ds.testing import RecipeTestCase


class TestByHand(RecipeTestCase):
    RECIPE = ByHand
    SPLITS = {"train": 2}
