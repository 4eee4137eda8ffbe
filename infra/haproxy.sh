#!/bin/sh
# HAProxy as Serve calls it (-db -f FILE ...), except that its pages of figures, which Serve has
# listen on every interface, listen on 127.0.0.1. The port of the service itself is left alone.
# Request bodies are not spliced: with it, HAProxy 2.8 misses a client that leaves, so that nothing
# aborts its request, and burns a core until the answer comes.
# What matches no application is answered 503, not 404: ours has every path, so that HAProxy has
# just been started and was not told yet where it runs. Clients try again.
set -eu
# Serve's own defaults, where a cluster does not choose the ports.
for port in "${RAY_SERVE_HAPROXY_METRICS_PORT:-9101}" "${RAY_SERVE_HAPROXY_STATS_PORT:-8404}"; do
    sed -i -E "s/^( *bind )\*?:$port\$/\1127.0.0.1:$port/" "$3"
done
sed -i -E '/^ *option splice-request *$/d' "$3"
error='{"error":{"message":"no replica is known yet","type":"server_error","param":null,"code":"not_ready"}}'
answer="status 503 content-type application/json string '$error' hdr Retry-After 1"
sed -i -E "s|^( *http-request return) status 404 .*Path .*not found.*\$|\\1 $answer|" "$3"
exec "$HAPROXY_BINARY" "$@"
