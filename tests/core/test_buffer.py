"""Bodies keep their bytes wherever they lie, and give back memory, disk and descriptors."""

import os
import random
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from any2ds.core.bodies.buffer import Body, Buffer


def body_of(buffer: Buffer, data: bytes, chunk: int = 1000) -> Body:
    body = Body(buffer)
    for start in range(0, len(data), chunk):
        body.write(data[start : start + chunk])
    return body


@given(st.lists(st.tuples(st.binary(max_size=3000), st.integers(1, 700)), max_size=20), st.integers(100, 20_000))
def test_bodies_are_whole_and_memory_is_bounded_whatever_arrives(arrivals: list[tuple[bytes, int]], limit: int) -> None:
    buffer = Buffer(limit, 4)
    bodies = []
    for data, chunk in arrivals:
        body = body_of(buffer, data, chunk)
        if buffer.used > buffer.half:
            body.spill()
        assert buffer.used <= limit
        bodies.append(body)
    assert [body.read() for body in bodies] == [data for data, _ in arrivals]
    assert [b"".join(body.chunks()) for body in bodies] == [data for data, _ in arrivals]
    assert [body.head() for body in bodies] == [data for data, _ in arrivals]
    for body in bodies:
        body.release()
    assert buffer.used == 0
    buffer.close()


def test_ten_thousand_waiting_bodies_take_few_descriptors_and_none_is_left() -> None:
    before = len(os.listdir("/dev/fd"))
    buffer = Buffer(1000, 1)
    bodies = [body_of(buffer, b"x" * 2000) for _ in range(10_000)]
    assert len(os.listdir("/dev/fd")) - before < 5
    random.Random(0).shuffle(bodies)
    for body in bodies:
        body.release()
    buffer.close()
    assert len(os.listdir("/dev/fd")) == before


def test_disk_is_used_again_when_nobody_waits(tmp_path: Path) -> None:
    buffer = Buffer(1000, 1, str(tmp_path))
    free = os.statvfs(tmp_path).f_bavail
    for _ in range(300):
        body_of(buffer, b"y" * 1_000_000, 100_000).release()
    used = (free - os.statvfs(tmp_path).f_bavail) * os.statvfs(tmp_path).f_frsize
    assert used < 200_000_000
    buffer.close()


def test_bodies_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    buffer = Buffer(1000, 4, str(tmp_path))
    bodies: dict[int, Body] = {}

    def arrive(number: int) -> None:
        for nth in range(100):
            bodies[number * 100 + nth] = body_of(buffer, b"%d" % (number * 100 + nth) * 1000, 500)

    threads = [threading.Thread(target=arrive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bodies) == 800
    assert all(body.read() == b"%d" % number * 1000 for number, body in bodies.items())
    for body in bodies.values():
        body.release()
    assert buffer.used == 0
    buffer.close()
