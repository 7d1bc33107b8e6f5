#!/usr/bin/env bash
# Write the lock files of requirements/: exact versions, a hash for every file of every release, markers for Python 3.10 and
# newer on Linux, and no index host. Needs uv, which is not locked itself: nothing but this script uses it.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v uv >/dev/null; then
    echo "lock: uv was not found on PATH; install it (pip install uv) and try again" >&2
    exit 1
fi

no_torch="$(mktemp)"
trap 'rm -f "$no_torch"' EXIT
echo "torch ; sys_platform == 'none'" >"$no_torch"

lock() { # lock NAME SOURCE [LOCK FILES TO AGREE WITH...]
    local out="requirements/$1.txt" source="$2" constraints=() part other
    for other in "${@:3}"; do constraints+=(--constraint "requirements/$other.txt"); done
    part="$(mktemp)"
    # Torch is never locked: it has a build for each kind of device.
    constraints+=(--overrides "$no_torch")
    uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate --upgrade \
        "${constraints[@]}" "$source" --output-file "$part" >/dev/null
    if grep -nE '://|^-' "$part"; then
        echo "lock: $out would name a host or an option (above); nothing was written" >&2
        rm -f "$part"
        exit 1
    fi
    { echo "# Locked by \`make lock\` from $source; do not edit."; cat "$part"; } >"$out.new"
    rm -f "$part"
    mv "$out.new" "$out"
    echo "lock: $out"
}

lock runtime pyproject.toml
lock build requirements/build.in runtime
lock dev requirements/dev.in runtime build
lock examples requirements/examples.in runtime build dev
lock frameworks requirements/frameworks.in runtime build dev examples
