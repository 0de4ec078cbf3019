"""Each store goes through the whole contract in the slow tests; in the others through a part of it."""

from collections.abc import Sequence

import pytest

ALWAYS = {"files", "webdataset"}  # many objects for each shard, and one


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or item.path.parent.name != "stores":
            continue
        output_format = item.callspec.params.get("output_format") if hasattr(item, "callspec") else None
        is_memory = item.path.name == "test_memory.py"
        if item.originalname == "test_from_a_list_and_files_in_it_to_every_format":
            is_slow = not is_memory and output_format not in ALWAYS
        else:
            is_slow = item.originalname in (
                "test_one_request_in_twenty_may_fail",
                "test_killed_amid_uploads_and_again_it_goes_on_each_time",
            ) and not (is_memory and output_format == "webdataset")
        if is_slow:
            item.add_marker(pytest.mark.slow)
