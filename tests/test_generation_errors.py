"""What goes wrong while a request runs, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controllers.errors import (
    ExecutorDead,
    ExecutorError,
    InvalidRequest,
    NotReady,
    Overloaded,
    RateLimited,
    RequestAborted,
    WorkerFull,
)
from tests.edge_fixtures import (
    COMPLETION,
    PlannedExecutor,
    RawClient,
    TestEdge,
    error_of,
    events_of,
    texts_of,
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "expected", "retry_after"),
    [
        (InvalidRequest("prompt", "no"), (400, "prompt", None), None),
        (NotReady("no worker", 2.2), (503, None, "not_ready"), "3"),
        (Overloaded("full", 0.1), (503, None, "overloaded"), "1"),
        (WorkerFull("full", 7.2), (503, None, "overloaded"), "8"),
        (RateLimited("over", 1.5), (429, None, "rate_limit_exceeded"), "2"),
        (ExecutorDead("gone"), (503, None, "worker_failed"), "1"),
        (ExecutorError("broke"), (500, None, "worker_failed"), None),
        (RequestAborted("closed"), (503, None, "worker_failed"), "1"),
        (KeyError("secret"), (500, None, "internal_error"), None),
        (OSError("secret"), (500, None, "internal_error"), None),
    ],
)
async def test_an_error_before_the_first_token_has_its_status(
    stream: bool,
    error: Exception,
    expected: tuple[int, str | None, str | None],
    retry_after: str | None,
) -> None:
    executor = PlannedExecutor(fail_after=0, error=error)
    response = await TestEdge(executor).chat(stream=stream)
    assert error_of(response) == expected
    assert response.headers.get("retry-after") == retry_after
    assert "secret" not in response.text
    assert executor.num_running == 0


@pytest.mark.parametrize("error", [ExecutorDead("gone"), ValueError("secret")])
async def test_an_error_in_mid_stream_is_an_event(error: Exception) -> None:
    executor = PlannedExecutor(fail_after=2, error=error, delay_s=0)
    events = events_of(await TestEdge(executor).chat(stream=True, max_tokens=5))
    assert texts_of([e for e in events if "error" not in e]) == {0: "St"}
    assert [event == "[DONE]" for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-2].keys() == {"error"}
    assert events[-2]["error"]["type"] == "server_error"
    assert "secret" not in str(events)
    assert executor.num_running == 0


async def test_one_failing_prompt_stops_the_others() -> None:
    class Half(PlannedExecutor):
        async def _obstacle(self, position: int) -> None:
            if len(self.requests) > 1 and position:
                raise ExecutorDead("gone")
            await asyncio.sleep(0)

    executor = Half()
    response = await TestEdge(executor).completion(prompt=["a", "b"], max_tokens=200)
    assert error_of(response) == (503, None, "worker_failed")
    assert (executor.num_running, executor.num_completed) == (0, 0)


async def test_an_answer_that_ends_too_early_is_an_error() -> None:
    class Short(PlannedExecutor):
        async def _chunks(self, request: Any) -> Any:
            yield self._chunk(request, 0, 0, 1, 5, 0)

    assert error_of(await TestEdge(Short()).chat()) == (500, None, "worker_failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_its_request(stream: bool) -> None:
    executor = PlannedExecutor(hold_after=3)
    edge = TestEdge(executor)
    body = {"prompt": ["a", "b"], "max_tokens": 10, "stream": stream}
    client = RawClient(edge.app, COMPLETION, body)
    await executor.held.wait()
    assert executor.num_running == 2
    client.leave()
    await client.task
    assert executor.num_running == 0
    assert bool(client.sent) == stream
    executor.hold_after = None
    assert (await edge.completion()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_cannot_send_any_more_aborts_the_request(stream: bool) -> None:
    async def broken(message: Any) -> None:
        raise ConnectionResetError

    executor = PlannedExecutor(delay_s=0)
    edge = TestEdge(executor)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await edge.app(scope, receive, broken)

    body = {"prompt": "a", "max_tokens": 9, "stream": stream}
    client = RawClient(app, COMPLETION, body)
    await client.task
    assert executor.num_running == 0
    assert executor.num_completed == (0 if stream else 1)
    await RawClient(app, COMPLETION, {"prompt": 5}).task


async def test_an_unexpected_error_is_logged_under_the_id_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    edge = TestEdge()
    edge.tokenizer.encode = None  # type: ignore[method-assign, assignment]
    response = await edge.completion()
    assert error_of(response) == (500, None, "internal_error")
    (record,) = caplog.records
    request_id = response.headers["x-request-id"]
    assert record.getMessage() == f"request {request_id} failed"
    assert record.exc_info is not None
    assert request_id in response.json()["error"]["message"]


async def test_a_client_that_leaves_before_its_body_is_read() -> None:
    edge = TestEdge()
    client = RawClient(edge.app, COMPLETION, {"prompt": "a"})
    client._inbox.get_nowait()
    client.leave()
    await client.task
    assert (client.sent, edge.executor.requests) == ([], [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_server_task_aborts_its_request(stream: bool) -> None:
    executor = PlannedExecutor(hold_after=3)
    client = RawClient(TestEdge(executor).app, COMPLETION, {"prompt": "a", "stream": stream})
    await executor.held.wait()
    client.task.cancel()
    await asyncio.wait([client.task])
    assert client.task.cancelled()
    assert executor.num_running == 0


async def test_chunks_that_are_ready_go_out_in_one_write() -> None:
    client = RawClient(TestEdge().app, COMPLETION, {"prompt": "a", "stream": True})
    while not client.sent or client.sent[-1].get("more_body", True):
        client.news.clear()
        await client.news.wait()
    await client.task
    assert [m["type"] for m in client.sent] == ["http.response.start", "http.response.body"]


async def test_the_first_token_is_not_held_back() -> None:
    executor = PlannedExecutor(hold_after=1)
    client = RawClient(TestEdge(executor).app, COMPLETION, {"prompt": "a", "stream": True})
    await executor.held.wait()
    while len(client.sent) < 2:
        client.news.clear()
        await client.news.wait()
    assert b'"text":"S"' in client.sent[1]["body"]
    client.leave()
    await client.task
