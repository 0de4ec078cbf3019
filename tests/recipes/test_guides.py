"""What the guides of TensorFlow Datasets on adding a dataset and on Beam datasets say, statement by statement.

Each has its counterpart here: a test of this suite, or a phrase of a page that gives the name or the reason.
"""

# ruff: noqa: E501 - a statement and its test are on one line

import re
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.cli import run
from any2ds.core.errors import UsageError
from tests.support.flowers import build, one_split

ROOT = Path(__file__).parents[2]
BUILD, FEATURES, DOWNLOADS = (f"recipes/test_{name}.py" for name in ("build", "features", "downloads"))
EXAMPLES, CLUSTER, TFDS = (
    "examples/test_recipes.py",
    "cluster/test_recipes.py",
    "reading/with_tensorflow/test_recipes.py",
)
PAGE = "docs/tfds.md"

ADDING = {
    "a command makes a template": f"{EXAMPLES}::test_a_new_recipe_passes_its_test_and_unittest_runs_it",
    "it makes code, a test, dummy data and checksums": f"{EXAMPLES}::test_a_new_recipe_passes_its_test_and_unittest_runs_it",
    "it takes the folder in which": f"{PAGE}: any2ds new --folder=",
    "the dataset is built in the folder of its code": "recipes/test_guides.py::test_a_recipe_is_built_in_its_folder",
    "load finds by name what was built": f"{EXAMPLES}::test_a_recipe_with_stems_as_keys_is_made_built_and_loaded_by_its_name",
    "importing a module registers its datasets": "recipes/test_registry.py::test_imports_name_modules_with_recipes",
    "load builds what is not there": f"{PAGE}: says which command builds it: no code of others runs",
    "data are made once, and read from then on": f"{BUILD}::test_a_finished_dataset_is_not_made_again",
    "large datasets are made by Beam": f"{CLUSTER}::test_splits_of_beam_share_steps_and_become_one_dataset",
    "a class has a version and release notes": f"{BUILD}::test_the_card_shows_what_the_recipe_says",
    "paths are objects of pathlib": f"{DOWNLOADS}::test_archives_are_unpacked_and_read_without_unpacking",
    "a description is dedented Markdown": "recipes/test_guides.py::test_what_the_guide_shows_of_info_is_taken",
    "homepage, citation and supervised keys": f"{TFDS}::test_tfds_reads_all_features_of_all_splits",
    "BibTeX may end its fields with a comma": "recipes/test_guides.py::test_what_the_guide_shows_of_info_is_taken",
    "classes are names or a number of them": f"{FEATURES}::test_classes_may_have_no_names",
    "a feature has a text about it": f"{TFDS}::test_tfds_reads_nested_sequences_and_tensors_of_any_shape",
    "nested sequences": f"{FEATURES}::test_nested_features_are_the_same_in_every_format",
    "audio": f"{PAGE}: it decodes such files only with pydub",
    "video from frames": f"{PAGE}: it is a sequence of images, `Sequence(Image())`",
    "samples are shuffled by their keys": f"{BUILD}::test_shards_hold_one_split_each_and_samples_are_in_the_order_of_a_hash",
    "shuffling can be disabled": f"{BUILD}::test_without_shuffling_samples_are_in_the_order_of_their_keys",
    "unshuffled shards are not read in parallel": f"{PAGE}: shards are read in parallel as well",
    "download takes http and ftp": "recipes/test_guides.py::test_a_recipe_downloads_what_the_engine_knows",
    "extract takes zip, gz and tar": f"{DOWNLOADS}::test_archives_are_unpacked_and_read_without_unpacking",
    "URLs may be nested in lists and dicts": f"{DOWNLOADS}::test_urls_may_be_nested_and_each_is_fetched_once",
    "what needs a login is put into a folder by hand": f"{EXAMPLES}::test_a_shipped_recipe_passes_its_test",
    "that folder can be chosen": f"{PAGE}: `data_dir/manual/my_dataset`",
    "archives are read without being unpacked": f"{DOWNLOADS}::test_archives_are_unpacked_and_read_without_unpacking",
    "splits keep their names": f"{BUILD}::test_a_recipe_becomes_a_dataset_in_every_format",
    "without splits there is train, which is split when read": f"{BUILD}::test_a_split_by_hash_is_the_same_in_every_format_and_order",
    "keys are unique": f"{BUILD}::test_a_duplicate_names_both_files",
    "keys do not depend on the machine": "recipes/test_testing.py::test_what_is_wrong_with_a_recipe_fails_its_test",
    "keys are comparable": f"{BUILD}::test_without_shuffling_samples_are_in_the_order_of_their_keys",
    "samples have the structure of the features": f"{BUILD}::test_what_is_wrong_is_named",
    "values are encoded": f"{FEATURES}::test_an_image_may_be_an_array_or_of_pillow",
    "files on stores": "recipes/test_stores.py::test_a_recipe_reads_files_on_a_store",
    "functions of TensorFlow for files": f"{PAGE}: `tf.io.gfile`",
    "libraries that only the generation needs": f"{PAGE}: `import` in the method that needs it",
    "corrupt samples are left out and counted": f"{BUILD}::test_corrupt_samples_are_skipped_and_counted",
    "configs are objects with options": f"{BUILD}::test_names_find_the_first_config_and_the_newest_version",
    "configs are dataclasses": f"{PAGE}: any name is an attribute",
    "the first config is the default": f"{BUILD}::test_names_find_the_first_config_and_the_newest_version",
    "versions of the data, and of the code": f"{PAGE}: a new `VERSION` for each change of the code",
    "a debugger, overwriting, trials and checksums are flags": f"{PAGE}: `--max_examples_per_split`, `--register_checksums`, `--pdb`",
    "a trial has some samples": f"{BUILD}::test_the_first_samples_of_each_split_are_a_trial_which_the_whole_dataset_replaces",
    "checksums are recorded": f"{DOWNLOADS}::test_checksums_are_registered_and_verified",
    "packages have the file of the checksums": f"{PAGE}: has to be in a package that has the recipe",
    "a test case runs a dataset on dummy data": "recipes/test_testing.py::test_nothing_fails_for_a_recipe_that_keeps_its_promises",
    "it fails if splits overlap": "recipes/test_testing.py::test_what_is_wrong_with_a_recipe_fails_its_test",
    "it compares the counts of the splits": "recipes/test_testing.py::test_the_counts_of_splits_and_the_checksums_are_compared",
    "URLs stand for dummy files": f"{PAGE}: `DUMMY_DATA`: each URL and its file",
    "the test is a program": f"{EXAMPLES}::test_a_new_recipe_passes_its_test_and_unittest_runs_it",
    "approximate sizes": f"{PAGE}: measured by the build",
    "features of one's own": f"{PAGE}: a dataset is read without code of its recipe",
}
BEAM = {
    "a config has to be named, or all are made": f"{PAGE}: all configs | `any2ds build .`; the first config",
    "options of the pipeline come from the command line": f"{CLUSTER}::test_splits_of_beam_share_steps_and_become_one_dataset",
    "data lie on a store": f"{CLUSTER}::test_beam_builds_into_a_store",
    "workers of Dataflow install the package": f"{PAGE}: `--beam_options=--requirements_file=…`",
    "without options it runs on this machine": f"{CLUSTER}::test_the_shipped_recipe_of_beam_passes_its_test",
    "a script of one's own": f"{CLUSTER}::test_beam_builds_into_a_store",
    "a split may be a transform": f"{CLUSTER}::test_splits_of_beam_share_steps_and_become_one_dataset",
    "tests are those of other datasets": f"{CLUSTER}::test_the_shipped_recipe_of_beam_passes_its_test",
    "reading does not need Beam": f"{PAGE}: to read a dataset, the code of its recipe is not run",
    "what is changed in the builder does not reach the workers": f"{PAGE}: does not reach the workers",
    "splits may share steps": f"{CLUSTER}::test_splits_of_beam_share_steps_and_become_one_dataset",
    "pipelines read a dataset": f"{PAGE}: `any2ds.beam.ReadShards`",
}


@pytest.mark.parametrize("statement", [*ADDING, *BEAM])
def test_each_statement_of_the_guides_has_a_counterpart(statement: str) -> None:
    file, colons, test = (ADDING | BEAM)[statement].partition("::")
    if colons:
        assert re.search(rf"^def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        return
    page, _, phrase = file.partition(": ")
    assert phrase in " ".join((ROOT / page).read_text().split())


def test_a_recipe_is_built_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letters.py").write_text(
        "import any2ds\n\n\nclass Letters(any2ds.Recipe):\n    '''Letters.'''\n\n    def info(self):\n"
        "        return any2ds.Info({'text': any2ds.Text()})\n\n    def splits(self, dl):\n"
        "        yield 'a', {'text': 'A'}\n"
    )
    monkeypatch.chdir(tmp_path / "letters")
    assert run(["build", ".", f"--data_dir={tmp_path}/data", "--quiet", "--noreport"]) == 0
    assert any2ds.load("letters", data_dir=tmp_path / "data")[0]["text"] == "A"


def test_what_the_guide_shows_of_info_is_taken() -> None:
    info = any2ds.Info(
        {"image": any2ds.Image(), "label": any2ds.ClassLabel(num_classes=5, doc="Which animal it is")},
        description="""
        Markdown that is *dedented*.
          - with a list
        """,
        citation=r"""
        @article{my-awesome-dataset-2020,
                 author = {Smith, John},}
        """,
        supervised_keys=("image", "label"),
    )
    assert info.description == "Markdown that is *dedented*.\n  - with a list"
    assert info.citation.startswith("@article{my-awesome-dataset-2020,")


def test_a_recipe_downloads_what_the_engine_knows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file")

    class Fetching(any2ds.Recipe):
        """A text of a URL that is none of the web."""

        def info(self) -> any2ds.Info:
            return any2ds.Info({"text": any2ds.Text()})

        def splits(self, dl: Any) -> Any:
            yield "a", {"text": dl.download(f"file://{tmp_path}/a.txt").read_text()}

    build(Fetching, tmp_path / "data", download_dir=tmp_path / "cache")
    assert any2ds.load("fetching", data_dir=tmp_path / "data")[0]["text"] == "from a file"
    with pytest.raises(UsageError, match="expected"):
        build(one_split(7), tmp_path / "data")
