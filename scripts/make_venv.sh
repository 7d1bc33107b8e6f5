#!/usr/bin/env bash
# Make the virtual environment $1 with ${PYTHON:-python3}, which must be 3.10 or newer. On Debian and Ubuntu the venv module is
# a package of its own: it is installed when that needs no question, else the command to type is printed.
set -euo pipefail
venv="$1"
python="${PYTHON:-python3}"

fail() {
    echo "setup: $1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "no $python on PATH; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3.12 ..."
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    fail "$python is $("$python" --version 2>&1), but holdfast needs 3.10 or newer; name another one: make PYTHON=python3.12 ..."
fi

has_venv() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }

if ! has_venv; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
    if ! command -v apt-get >/dev/null; then
        fail "$python has no venv module and there is no apt-get to install it with; install the venv module of $python"
    fi
    if [ "$(id -u)" -ne 0 ] && ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
        fail "$python has no venv module; run  sudo apt-get update && sudo apt-get install -y $package  and try again"
    fi
    echo "setup: installing $package" >&2
    three_tries="$(dirname "$0")/three_tries.sh"
    "$three_tries" "${as_root[@]}" apt-get update -q -o APT::Update::Error-Mode=any </dev/null >&2 || true
    "$three_tries" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$package" \
        </dev/null >&2 ||
        fail "apt-get could not install $package (above)"
    has_venv || fail "$python still has no venv module after installing $package"
fi

# Left behind half made (an interrupted run), or made by another Python: start anew, but only ever remove a virtual environment.
if [ -e "$venv" ] || [ -L "$venv" ]; then
    [ -f "$venv/pyvenv.cfg" ] || fail "$venv exists and is not a virtual environment; move it away"
    rm -rf -- "$venv"
fi
"$python" -m venv "$venv" || fail "$python -m venv $venv failed (above)"
# Older Pythons put setuptools into each environment, and with it a .pth line that slows every start; nothing here uses it.
"$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes setuptools 2>/dev/null || true
