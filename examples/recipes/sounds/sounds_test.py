"""Tries the recipe on three sounds, one of which is broken."""

from sounds import URLS, Sounds

from any2ds.testing import RecipeTestCase


class TestSounds(RecipeTestCase):
    RECIPE = Sounds
    SPLITS = {"train": 2}
    DUMMY_DATA = {URLS["table"]: "sounds.csv", URLS["files"]: "sounds"}
