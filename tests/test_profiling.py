"""Captures of this very process, by the sampling profiler that comes with Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.profiling import Profiler

IDLE = {"node": "", "tool": "", "path": "", "num_bytes": 0, "error": ""}


def order(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"target": "rep-0", "seconds": 1, "tool": "py-spy", "folder": str(folder), **changes}


@pytest.fixture(autouse=True)
def busy_process() -> Iterator[None]:
    """What does nothing has no stacks to count."""
    is_over = threading.Event()

    def count() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=count)
    thread.start()
    yield
    is_over.set()
    thread.join()


def profiler() -> Profiler:
    return Profiler("rep", ["rep-0", "rep-1"], "here")


async def test_a_capture_of_this_process(tmp_path: Path) -> None:
    answer = await profiler().answer(order(tmp_path / "new" / "folder", target="rep"))
    assert answer["error"] == ""
    file = Path(answer["path"])
    assert file.parent == tmp_path / "new" / "folder"
    assert file.name.startswith("rep-")
    assert file.name.endswith("-py-spy.svg")
    assert answer["num_bytes"] == file.stat().st_size > 0
    assert file.read_text("utf-8").startswith("<?xml")


async def test_an_order_for_another_replica_is_none_of_its_business(tmp_path: Path) -> None:
    answer = await profiler().answer(order(tmp_path, target="other-0"))
    assert answer == {"replica": "rep", "workers": ["rep-0", "rep-1"], **IDLE}
    assert list(tmp_path.iterdir()) == []


async def test_one_capture_at_a_time(tmp_path: Path) -> None:
    busy = profiler()
    answers = await asyncio.gather(*(busy.answer(order(tmp_path)) for _ in range(2)))
    errors = sorted(answer["error"] for answer in answers)
    assert errors == ["", "a capture is already running in rep"]
    assert len(list(tmp_path.iterdir())) == 1
    assert (await busy.answer(order(tmp_path)))["error"] == ""


async def test_what_cannot_be_done_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    orders = [
        order(tmp_path, seconds=601),
        order(tmp_path, tool="torch"),
        order(file),
    ]
    errors = [(await profiler().answer(values))["error"] for values in orders]
    assert errors[0] == "seconds: 601 is not between 1 and 600, the range of py-spy"
    assert errors[1].startswith("torch is not loaded")
    assert errors[2] == f"cannot make {file}: File exists"
    assert list(tmp_path.iterdir()) == [file]
