import pytest

pytest.register_assert_rewrite("any2ds.testing")
