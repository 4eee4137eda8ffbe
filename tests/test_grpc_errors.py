from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from controllers.errors import InvalidRequest, NotReady
from serve_app.grpc_errors import MAX_MESSAGE, grpc_problem
from serve_app.http_errors import HttpProblem, error_body, problem_of

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, Code.INVALID_ARGUMENT), (401, Code.UNAUTHENTICATED), (403, Code.PERMISSION_DENIED),
        (404, Code.NOT_FOUND), (408, Code.DEADLINE_EXCEEDED), (413, Code.RESOURCE_EXHAUSTED),
        (429, Code.RESOURCE_EXHAUSTED), (500, Code.INTERNAL), (503, Code.UNAVAILABLE),
        (504, Code.DEADLINE_EXCEEDED), (529, Code.UNAVAILABLE), (418, Code.INTERNAL),
    ],
)  # fmt: skip
def test_the_code_of_a_status(status: int, code: Code) -> None:
    found = grpc_problem(HttpProblem(status, [], error_body("why", "server_error", code="x")))
    assert (found.code, found.message) == (code, "why")
    said = status_pb2.Status.FromString(found.status)
    assert (said.code, said.message) == (code.value[0], "why")
    (detail,) = said.details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert info == error_details_pb2.ErrorInfo(reason="X", domain="cachelane")


def test_details_of_a_bad_field_and_of_a_wait() -> None:
    bad = grpc_problem(problem_of(InvalidRequest("retention[0].start", "is odd"), "r"))
    _, detail = status_pb2.Status.FromString(bad.status).details
    request = error_details_pb2.BadRequest()
    assert detail.Unpack(request)
    (violation,) = request.field_violations
    assert violation.field == "retention[0].start"
    assert violation.description == "retention[0].start: is odd"
    wait = grpc_problem(problem_of(NotReady("no worker", 2.5), "r"))
    _, detail = status_pb2.Status.FromString(wait.status).details
    retry = error_details_pb2.RetryInfo()
    assert detail.Unpack(retry)
    assert retry.retry_delay.seconds == 3


def test_a_message_fits_into_the_trailers() -> None:
    found = grpc_problem(
        problem_of(InvalidRequest("prompt", "\N{SLIGHTLY SMILING FACE}" * 5000), "r")
    )
    assert MAX_MESSAGE - 4 < len(found.message.encode()) <= MAX_MESSAGE
    assert len(quote(found.message)) + len(b64encode(found.status)) < 6000
