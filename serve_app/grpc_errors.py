"""What HTTP clients are told of an error -> the status of a gRPC call, with google.rpc details.

The reasons, messages and fields are those of `http_errors`; here they only change their dress.
"""

from __future__ import annotations

from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc.status_pb2 import Status

from serve_app.http_errors import HttpProblem

DOMAIN = "cachelane"
STATUS_KEY = "grpc-status-details-bin"
# Trailers have room for 8 KiB; the message goes out three times, and each time grows by encoding.
MAX_MESSAGE = 1000  # bytes

_CODE_BY_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    529: grpc.StatusCode.UNAVAILABLE,
}


class GrpcProblem(NamedTuple):
    """`status` is the serialized google.rpc.Status, for the trailer STATUS_KEY."""

    code: grpc.StatusCode
    message: str
    status: bytes


def grpc_problem(problem: HttpProblem) -> GrpcProblem:
    code = _CODE_BY_STATUS.get(problem.status, grpc.StatusCode.INTERNAL)
    message = problem.body["error"]["message"].encode()[:MAX_MESSAGE].decode(errors="ignore")
    status = Status(code=code.value[0], message=message)
    for detail in _details(problem, message):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return GrpcProblem(code, message, status.SerializeToString())


def _details(problem: HttpProblem, message: str) -> list[Message]:
    error = problem.body["error"]
    reason = (error["code"] or error["type"]).upper()
    found: list[Message] = [details.ErrorInfo(reason=reason, domain=DOMAIN)]
    if error["param"] is not None:
        violation = details.BadRequest.FieldViolation(field=error["param"], description=message)
        found.append(details.BadRequest(field_violations=[violation]))
    retry_after = dict(problem.headers).get(b"retry-after")
    if retry_after is not None:
        retry = details.RetryInfo()
        retry.retry_delay.FromSeconds(int(retry_after))
        found.append(retry)
    return found
