"""Tries the recipe on two images of a server on this machine."""

from captioned_links import LIST, CaptionedLinks

from any2ds.testing import RecipeTestCase


class TestCaptionedLinks(RecipeTestCase):
    RECIPE = CaptionedLinks
    SPLITS = {"train": 2}
    CHECKS_CHECKSUMS = False  # the list is half a gigabyte, and is not fetched for a test

    @classmethod
    def dummy_data(cls):
        path = cls._folder / "list.tsv"
        path.write_text("".join(f"a picture\t{url}\n" for url in cls.serve("images")), encoding="utf-8")
        return {LIST: str(path)}
