import signal
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("any2ds.testing")

# A shell that runs the tests in the background has SIGINT ignored, in all their children too: none would stop.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[None]:
    """An S3 on this machine, known to all through the environment."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield
        server.stop()
