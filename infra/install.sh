#!/bin/sh
# Makes the virtual environment with the pinned packages; does nothing when that is done.
# PYTHON: interpreter to use (default: the first supported one on PATH). VENV: folder (default .venv).
set -eu

venv=${VENV:-.venv}
stamp=$venv/.installed
supported='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'

fail() {
    echo "cachelane: $1" >&2
    exit 1
}

find_python() {
    for name in python3 python3.13 python3.12 python3.11 python3.10 python; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -c "$supported" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
}

version_of() {
    "$1" -V 2>&1 | head -n 1
}

inputs=$(cat pyproject.toml constraints.txt infra/install.sh | cksum)
wanted=${PYTHON:-}
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$inputs" ]; then
    if [ -z "$wanted" ] || [ "$(version_of "$wanted")" = "$(version_of "$venv/bin/python")" ]; then
        exit 0
    fi
fi

python=${wanted:-$(find_python)}
[ -n "$python" ] || fail "no Python 3.10-3.13 found; install one, or name it: make install PYTHON=/path/to/python3.12"
"$python" -c "$supported" 2>/dev/null || fail "$python is not a Python 3.10-3.13 ($(version_of "$python")); name another: make install PYTHON=/path/to/python3.12"

free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$free_mb" -ge 2000 ] || fail "only $free_mb MB free on this disk; the packages need about 2000 MB: free some space"

echo "cachelane: making $venv with $(version_of "$python") (about a minute)"
clear=
if [ "$(version_of "$python")" != "$(version_of "$venv/bin/python" 2>/dev/null)" ]; then
    clear=--clear
fi
"$python" -m venv $clear "$venv" || fail "$python cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"
log=$venv/install.log
rm -f "$stamp"
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --only-binary=:all: \
    -c constraints.txt -e '.[dev]' >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    fail "packages could not be installed (whole log: $log); is the package index reachable?"
fi
echo "$inputs" >"$stamp"
