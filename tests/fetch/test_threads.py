"""Threads around a client that does what each test tells it."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.engines.threads import Answer, Refused, ThreadTransfer, ThreadTransport
from any2ds.fetch.policy.hosts import Attempt, Host, HostPolicy

Act = Callable[[str, ThreadTransfer], Answer | Failure]
SOON = 100.0


@pytest.fixture
def transport() -> Iterator[Callable[..., ThreadTransport]]:
    opened = []

    def make(act: Act, buffer: Buffer | None = None, **options: Any) -> ThreadTransport:
        chosen = Config.from_options({"url_list": "-", **options}).fetch
        made = ThreadTransport(act, chosen, buffer or Buffer(1 << 30, 1), lambda: made.wake())
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.close()


def attempt(url: str = "x:") -> Attempt:
    return Attempt(Row(0, 0, "0", url), Host("", HostPolicy()))


def results(transport: ThreadTransport, count: int) -> list[Payload | Failure]:
    found: list[Payload | Failure] = []
    end = time.monotonic() + SOON
    while len(found) < count and time.monotonic() < end:
        found += [outcome for _, outcome in transport.poll(0.1)]
    assert len(found) == count
    return found


def test_a_poll_ends_as_soon_as_there_is_something(transport: Any) -> None:
    moved = transport(lambda url, transfer: Failure("fetch", "dns"))
    moved.start(attempt(), "x:")
    assert moved.poll(SOON) != []


def test_whatever_a_client_raises_is_a_failed_row_without_credentials(transport: Any) -> None:
    def act(url: str, transfer: ThreadTransfer) -> Answer:
        if url == "refused:":
            raise Refused("opted_out", "noai")
        raise LookupError("no way to\nsftp://me:secret@host/x")

    moved = transport(act, thread_count=1)
    moved.start(attempt(), "refused:")
    moved.start(attempt(), "raised:")
    refused, raised = results(moved, 2)
    assert isinstance(refused, Failure)
    assert isinstance(raised, Failure)
    assert refused.code == "opted_out"
    assert (raised.code, raised.detail) == ("fetch_error", "LookupError: no way to sftp://host/x")


def test_threads_that_hang_are_replaced_but_not_without_end(transport: Any) -> None:
    hanging, release = threading.Semaphore(0), threading.Event()

    def act(url: str, transfer: ThreadTransfer) -> Answer | Failure:
        if url == "hang:":
            hanging.release()
            release.wait(SOON)
        return Failure("fetch", "dns")

    moved = transport(act, thread_count=2)
    for _ in range(2):
        hung = [attempt(), attempt()]
        for one in hung:
            moved.start(one, "hang:")
            assert hanging.acquire(timeout=SOON)
        assert all("while connecting" in moved.cancel(one).detail for one in hung)
    # As many hang as there may be, twice over: what comes next waits for one of them, and can be cancelled.
    late = [attempt(), attempt()]
    for one in late:
        moved.start(one, "x:")
    assert moved.poll(0) == []
    assert "waiting for a thread" in moved.cancel(late[0]).detail
    release.set()
    assert len(results(moved, 1)) == 1


def test_what_arrives_after_it_was_cancelled_is_dropped(transport: Any) -> None:
    received, ended, write_pending = threading.Event(), threading.Event(), threading.Event()

    def act(url: str, transfer: ThreadTransfer) -> Answer:
        transfer.receive(b"x" * 1000)
        received.set()
        write_pending.wait(SOON)
        try:
            transfer.receive(b"x" * 1000)
        finally:
            ended.set()
        return Answer()

    buffer = Buffer(1 << 20, 1)
    moved = transport(act, buffer, thread_count=1)
    given_up = attempt()
    moved.start(given_up, "x:")
    assert received.wait(SOON)
    assert moved.cancel(given_up).detail.endswith("while receiving the body (1000 bytes so far)")
    write_pending.set()
    assert ended.wait(SOON)
    moved.start(attempt(), "x:")
    (second,) = results(moved, 1)
    assert isinstance(second, Payload)
    assert second.body.size == 2000
    second.body.release()
    assert buffer.used == 0


def test_bodies_of_all_threads_together_stay_in_bounds(transport: Any) -> None:
    most, lock = [0], threading.Lock()

    def act(url: str, transfer: ThreadTransfer) -> Answer:
        for _ in range(100):
            transfer.receive(bytes(10_000))
            with lock:
                most[0] = max(most[0], buffer.used)
        return Answer()

    buffer = Buffer(1_000_000, 32)
    moved = transport(act, buffer, thread_count=16)  # twice as many threads at most
    for _ in range(64):
        moved.start(attempt(), "x:")
    bodies = [outcome.body for outcome in results(moved, 64) if isinstance(outcome, Payload)]
    assert [len(body.read()) for body in bodies] == [1_000_000] * 64
    assert most[0] <= 1_000_000 + 32 * 10_000  # a chunk is counted before it goes to disk
    for body in bodies:
        body.release()
    assert buffer.used == 0
    buffer.close()


def test_a_full_disk_is_not_held_against_the_server(transport: Any, tmp_path: Path) -> None:
    def act(url: str, transfer: ThreadTransfer) -> Answer:
        for _ in range(3):
            transfer.receive(bytes(1000))
        return Answer()

    moved = transport(act, Buffer(10, 1, str(tmp_path / "missing")), thread_count=1)
    moved.start(attempt(), "x:")
    with pytest.raises(OSError, match="missing"):
        results(moved, 1)
