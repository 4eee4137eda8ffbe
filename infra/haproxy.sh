#!/bin/sh
# HAProxy as Serve calls it (-db -f FILE ...), except that its pages of figures, which Serve has
# listen on every interface, listen on 127.0.0.1. The port of the service itself is left alone.
set -eu
for port in "$RAY_SERVE_HAPROXY_METRICS_PORT" "$RAY_SERVE_HAPROXY_STATS_PORT"; do
    sed -i -E "s/^( *bind )\*?:$port\$/\1127.0.0.1:$port/" "$3"
done
exec "$HAPROXY_BINARY" "$@"
