#!/bin/sh
# HAProxy as Serve calls it (-db -f FILE ...), except that its pages of figures, which Serve has
# listen on every interface, listen on 127.0.0.1. The port of the service itself is left alone.
# Request bodies are not spliced: with it, HAProxy 2.8 misses a client that leaves, so that nothing
# aborts its request, and burns a core until the answer comes.
# What matches no application is answered 503, not 404: ours has every path, so that HAProxy has
# just been started and was not told yet where it runs. Clients try again.
# An ingress that dies under a request, or that cannot be reached, is told in the shape of all other
# errors, where Serve has a plain 500.
set -eu
# Serve's own defaults, where a cluster does not choose the ports.
for port in "${RAY_SERVE_HAPROXY_METRICS_PORT:-9101}" "${RAY_SERVE_HAPROXY_STATS_PORT:-8404}"; do
    sed -i -E "s/^( *bind )\*?:$port\$/\1127.0.0.1:$port/" "$3"
done
sed -i -E '/^ *option splice-request *$/d' "$3"
answer() { # status, code, message
    error="{\"error\":{\"message\":\"$3\",\"type\":\"server_error\",\"param\":null,\"code\":\"$2\"}}"
    echo "status $1 content-type application/json string '$error' hdr Retry-After 1"
}
absent=$(answer 503 not_ready "no replica is known yet")
sed -i -E "s|^( *http-request return) status 404 .*Path .*not found.*\$|\\1 $absent|" "$3"
died=$(answer 502 ingress_failed "the ingress process of this request ended before it answered")
unreachable=$(answer 503 not_ready "no ingress process can be reached")
late=$(answer 504 timeout "no answer in the time that HAProxy was given")
sed -i -E "s|^( *)errorfile 502 .*\$|\\1http-error $died|
s|^( *)errorfile 503 .*\$|\\1http-error $unreachable|
s|^( *)errorfile 504 .*\$|\\1http-error $late|" "$3"
exec "$HAPROXY_BINARY" "$@"
