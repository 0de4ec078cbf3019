"""A port of a builder class of TensorFlow Datasets, whose parts stand beside ours.

class HorsesOrHumans(tfds.core.GeneratorBasedBuilder):     class HorsesOrHumans(any2ds.Recipe):
  VERSION = tfds.core.Version("3.0.0")                       VERSION = "3.0.0"
  def _info(self):                                           def info(self):
    return self.dataset_info_from_configs(                     return any2ds.Info(
        features=tfds.features.FeaturesDict({...}))                features={...})
  def _split_generators(self, dl_manager):                   def splits(self, dl):
    dl_manager.download([TRAIN, TEST])                         dl.download([TRAIN, TEST])
  def _generate_examples(self, archive):                     def samples(self, archive):
"""

import re

import any2ds

TRAIN = "https://storage.googleapis.com/download.tensorflow.org/data/horse-or-human.zip"
TEST = "https://storage.googleapis.com/download.tensorflow.org/data/validation-horse-or-human.zip"
NAME = re.compile(r"(?:.*/)?(horses|humans)/([\w-]+\.png)")


class HorsesOrHumans(any2ds.Recipe):
    """Rendered images of horses and of humans."""

    VERSION = "3.0.0"
    RELEASE_NOTES = {"3.0.0": "Splits by slices."}

    def info(self):
        return any2ds.Info(
            features={"image": any2ds.Image(), "label": any2ds.ClassLabel(["horses", "humans"])},
            homepage="http://laurencemoroney.com/horses-or-humans-dataset",
            citation="@ONLINE{horses_or_humans, author = {Laurence Moroney}, title = {Horses or Humans}, year = 2019}",
            tags=["images", "classification"],
            supervised_keys=("image", "label"),
        )

    def splits(self, dl):
        train, test = dl.download([TRAIN, TEST])
        return {
            "train": self.samples("train", dl.iter_archive(train)),
            "test": self.samples("test", dl.iter_archive(test)),
        }

    def samples(self, split, archive):
        for name, file in archive:
            if (match := NAME.fullmatch(name)) is not None:
                # A key is unique in the dataset, where TensorFlow Datasets wants it to be in its split.
                yield f"{split}/{match[2]}", {"image": file.read(), "label": match[1]}
