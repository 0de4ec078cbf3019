"""Child processes that all answer the same questions: threads share them, and there are as many as that takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

from any2ds.core.processes.child_process import Answer, Answering, ChildEnded, Question

_IDLE = 60.0  # seconds after which children that nobody needs are ended


class NotStarted(Exception):
    """A child cannot be started; the words say why."""


class Children(Generic[Question, Answer]):
    """All methods may be called from any thread."""

    def __init__(self, new_answer: Callable[[], Callable[[Question], Answer]], patience: float) -> None:
        """`new_answer` as for `Answering`; one that has not begun within `patience` seconds cannot be started."""
        self._new_answer, self._patience = new_answer, patience
        self._lock = threading.Lock()
        self._idle: list[Answering[Question, Answer]] = []
        self._all: set[Answering[Question, Answer]] = set()
        self._closed = threading.Event()
        self._timer: threading.Timer | None = None
        # Linux ends children with the thread that started them: one that does nothing else, and is there to the end.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="any2ds-children")

    def start(self) -> None:
        """Have a child ready before anybody asks it. Raises NotStarted, ChildEnded."""
        self.give_back(self._borrowed()[0])

    def ask(self, question: Question, patience: float) -> tuple[Answering[Question, Answer], Answer]:
        """The answer of a child, and that child, which nobody else asks anything until it is given back.

        Raises ChildEnded and what else `Answering.ask` does, and NotStarted.
        """
        while True:
            child, is_new = self._borrowed()
            try:
                return child, child.ask(question, patience)
            except ChildEnded as error:
                self.give_back(child)
                if is_new or error.late:  # else it may have died before it was asked
                    raise
            except BaseException:  # also GivenUp, thrown into a thread that is late
                self.give_back(child)
                raise

    def answer(self, question: Question, patience: float) -> Answer:
        """As `ask`, for one question."""
        child, answer = self.ask(question, patience)
        try:
            return answer
        finally:
            self.give_back(child)

    def give_back(self, child: Answering[Question, Answer]) -> None:
        with self._lock:
            if child.is_usable and not self._closed.is_set():
                self._idle.append(child)
                if self._timer is None:
                    self._timer = threading.Timer(_IDLE, self._rest)
                    self._timer.daemon = True
                    self._timer.start()
                return
            self._all.discard(child)
        child.end()

    def close(self) -> None:
        """End all of them, whatever they are at."""
        with self._lock:
            self._closed.set()
            for child in self._all:
                child.kill()
            if self._timer is not None:
                self._timer.cancel()
        self._end_idle()
        self._starter.shutdown(wait=False)

    def _borrowed(self) -> tuple[Answering[Question, Answer], bool]:
        """A child that is ready to be asked, and whether it is new."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        child: Answering[Question, Answer] | None = None
        starting: Future[Answering[Question, Answer]] | None = None
        try:
            starting = self._starter.submit(Answering[Question, Answer], self._new_answer)
            child = starting.result()
            with self._lock:
                self._all.add(child)
                if self._closed.is_set():
                    child.kill()
            child.begin(self._patience)
        except Exception as error:
            if child is not None:
                self.give_back(child)
            if self._closed.is_set():
                raise ChildEnded("was given up") from error
            raise NotStarted(f"it {error}") from error
        except BaseException:  # as in `ask`; one that is still being started is ended when it is there
            if starting is not None:
                starting.add_done_callback(lambda done: None if done.exception() else self.give_back(done.result()))
            raise
        return child, True

    def _rest(self) -> None:
        """A minute later: whoever is not at work is ended, and started again if it is needed after all."""
        with self._lock:
            self._timer = None
        self._end_idle()

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
        for child in idle:
            child.end()
