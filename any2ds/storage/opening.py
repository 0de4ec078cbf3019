"""Opens the folder of a dataset by its URL."""

from __future__ import annotations

from any2ds.config.options import StorageOptions
from any2ds.core.errors import OutputError
from any2ds.storage.folders import OutputFolder
from any2ds.storage.local import LocalFolder
from any2ds.storage.remote import kind_of
from any2ds.storage.stores import Stores, is_local

_DEFAULTS = StorageOptions()


def open_folder(url: str, options: StorageOptions = _DEFAULTS, stores: Stores | None = None) -> OutputFolder:
    """The folder at `url`, which need not be there. `stores` are those of the options if they are not given.

    Raises OutputError, InputError or MissingExtra if there can be no such folder.
    """
    try:
        url.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OutputError(f"output folder {url!r} is not text in the encoding of this system: {error}") from error
    stores = stores or Stores(options.storage_options)
    fs, path = stores.open(url)
    if is_local(fs):
        return LocalFolder(url, options, stores, fs, path)
    return kind_of(fs)(url, options, stores, fs, path)
