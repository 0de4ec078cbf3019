import signal

import pytest

pytest.register_assert_rewrite("any2ds.testing")

# A shell that runs the tests in the background has SIGINT ignored, in all their children too: none would stop.
signal.signal(signal.SIGINT, signal.default_int_handler)
