"""Where the service answers and whether it is ready. Asks over HTTP; knows nothing of Serve."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPResponse
from urllib.parse import urlsplit

from infra.settings import LOOPBACK_NAMES, Settings


def open_url(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """urlopen, without the environment's proxy where this machine is meant: it cannot know us."""
    is_local = urlsplit(request.full_url).hostname in LOOPBACK_NAMES.split(",")
    handlers = [urllib.request.ProxyHandler({})] if is_local else []
    response: HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return response


def not_ready_reason(url: str, timeout_s: float = 2.0) -> str | None:
    """None if the service at `url` says it is ready."""
    try:
        with open_url(urllib.request.Request(f"{url}/ready"), timeout_s):
            return None
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(500).decode('utf-8', 'replace').strip()}"
    except OSError as error:
        return str(error)


def url_of(settings: Settings) -> str:
    """As a client on this machine says it."""
    return f"http://{_reachable(settings.http.host)}:{settings.http.port}"


def grpc_address_of(settings: Settings) -> str:
    """host:port as a client on this machine says it; "" if gRPC is off."""
    grpc = settings.grpc
    return f"{_reachable(grpc.host)}:{grpc.port}" if grpc.enabled else ""


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host
