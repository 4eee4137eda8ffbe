"""A chat over gRPC: `python client.py "What is the capital of France?"`.

Needs grpcio, protobuf and googleapis-common-protos, and the two generated files beside this one;
nothing of Cachelane itself.
"""

from __future__ import annotations

import argparse
import sys

import cachelane_pb2 as pb
import cachelane_pb2_grpc
import grpc
from google.rpc import error_details_pb2, status_pb2


def main() -> int:
    options = _options()
    metadata = [("authorization", f"Bearer {options.key}")] if options.key else []
    request = pb.ChatRequest(
        messages=[pb.ChatMessage(role="user", content=options.question)],
        max_tokens=options.max_tokens,
        temperature=0.0,
        request_type="interactive",
    )
    with grpc.insecure_channel(options.address) as channel:
        stub = cachelane_pb2_grpc.CachelaneStub(channel)
        call = stub.ChatStream(request, timeout=options.timeout_s, metadata=metadata)
        try:
            show(call)
        except grpc.RpcError as error:
            print(explain(error), file=sys.stderr)
            return 1
    return 0


def show(call: grpc.Call) -> None:
    """Prints the text as it comes, then where the request went and what the cache was worth."""
    usage = pb.Usage()
    for chunk in call:
        print("".join(choice.text for choice in chunk.choices), end="", flush=True)
        usage.MergeFrom(chunk.usage)  # set in the last message
    trailers = dict(call.trailing_metadata())
    print(
        f"\n[{trailers['x-cachelane-worker']} · {trailers['x-cachelane-reason']} · "
        f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached · "
        f"{usage.completion_tokens} tokens]"
    )


def explain(error: grpc.RpcError) -> str:
    """The code and the message; for an error of ours also the field or when to come again."""
    lines = [f"{error.code().name}: {error.details()}"]
    data = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    for detail in status_pb2.Status.FromString(data).details if data else ():
        request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(request):
            lines += [f"field: {violation.field}" for violation in request.field_violations]
        if detail.Unpack(retry):
            lines.append(f"try again after {retry.retry_delay.seconds} s")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a question over gRPC.")
    parser.add_argument("question")
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--key", help="API key of a tenant")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
