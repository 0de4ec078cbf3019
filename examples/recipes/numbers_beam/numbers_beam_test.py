"""Tries the recipe with Beam's runner on this machine."""

from numbers_beam import NumbersBeam

from any2ds.testing import RecipeTestCase


class TestNumbersBeam(RecipeTestCase):
    RECIPE = NumbersBeam
    SPLITS = {"even": 50, "odd": 50}
