"""The thread that makes the blocking calls of a TensorRT-LLM engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from controllers.errors import ExecutorDead
from serve_app.executors.base import GenerateRequest, SamplingParams
from serve_app.executors.trtllm_books import Books, EngineSequence
from serve_app.executors.trtllm_ranks import Ranks
from serve_app.executors.trtllm_requests import Requests
from serve_app.executors.trtllm_thread import PollThread

B = 4


class Engine:
    """Answers nothing, and notes by whom it was asked."""

    def __init__(self) -> None:
        self.callers: set[str] = set()
        self.num_polls = 0
        self.polled = threading.Event()
        self.capacity_error: Exception | None = None

    def events(self) -> list[Any]:
        self._note()
        self.num_polls += 1
        self.polled.set()
        return []

    def stats(self) -> list[Any]:
        self._note()
        return []

    def capacity(self) -> dict[str, int]:
        self._note()
        if self.capacity_error is not None:
            raise self.capacity_error
        return {"maxNumBlocks": 7}

    def is_alive(self) -> bool:
        self._note()
        return True

    def _note(self) -> None:
        self.callers.add(threading.current_thread().name)


class Rig:
    def __init__(self) -> None:
        self.engine = Engine()
        self.books = Books(4, B)
        self.deaths: list[ExecutorDead] = []
        self.thread = PollThread(
            lambda: self.engine,  # type: ignore[arg-type, return-value]
            Ranks(1, B, Requests(B), buffer_size=4),
            self.books,
            block_size=B,
            poll_interval_s=3600.0,
            hang_timeout_s=3600.0,
            on_death=self.deaths.append,
        )

    def be_busy(self) -> None:
        request = GenerateRequest(
            request_id="a", token_ids=b"", sampling=SamplingParams(max_tokens=1)
        )
        self.books.add(
            EngineSequence(
                request=request,
                index=0,
                num_prompt_tokens=1,
                num_uncached=1,
                hashes=[],
                submitted_at=self.books.clock(),
            )
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    assert made.thread.stop(10.0)


def test_all_calls_come_from_one_thread(rig: Rig) -> None:
    rig.thread.wait_loaded()
    rig.thread.probe(None, 10.0)
    assert rig.thread.capacity == {"maxNumBlocks": 7}
    assert rig.engine.polled.wait(10.0)
    assert rig.engine.callers == {"trtllm-poll"}


def test_a_size_that_the_engine_cannot_say_ends_the_start(rig: Rig) -> None:
    rig.engine.capacity_error = RuntimeError("no such call")
    with pytest.raises(ExecutorDead, match="failed at its start: no such call"):
        rig.thread.probe(None, 10.0)
    assert rig.deaths == []


def test_requests_do_not_make_a_busy_thread_ask_more_often(rig: Rig) -> None:
    """Its interval is an hour here; a request's begin and end only end an idle one's rest."""
    rig.be_busy()
    rig.thread.probe(None, 10.0)
    assert rig.engine.polled.wait(10.0)
    rig.engine.polled.clear()
    for _ in range(100):
        rig.thread.wake()
    assert not rig.engine.polled.wait(0.2)
    assert rig.engine.num_polls == 1


def test_an_idle_thread_is_woken(rig: Rig) -> None:
    rig.thread.probe(None, 10.0)
    assert rig.engine.polled.wait(10.0)
    rig.engine.polled.clear()
    rig.thread.wake()
    assert rig.engine.polled.wait(10.0)
