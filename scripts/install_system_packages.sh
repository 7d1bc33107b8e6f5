#!/usr/bin/env bash
# Install what scripts/system-packages.txt lists and is not installed yet. Does nothing (and needs no rights) when all are there.
# SYSTEM_PACKAGES=skip leaves the machine as it is: tests whose tool is missing then say so and are skipped.
set -euo pipefail
list="$(dirname "$0")/system-packages.txt"

three_tries="$(dirname "$0")/three_tries.sh"

say() { echo "system packages: $*" >&2; }

if [ "${SYSTEM_PACKAGES:-install}" = skip ]; then
    say "skipped (SYSTEM_PACKAGES=skip)"
    exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is not Debian or Ubuntu (no dpkg or apt-get); install these yourself: $(sed 's/[[:space:]]*#.*//' "$list" | xargs)"
    exit 0
fi

installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

missing=()
while read -r package _; do
    case "$package" in '' | '#'*) continue ;; esac
    installed "$package" || missing+=("$package")
done <"$list"
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        say "missing: ${missing[*]}"
        say "installing them needs root: run  sudo apt-get install -y --no-install-recommends ${missing[*]}"
        say "or set SYSTEM_PACKAGES=skip to run the tests without them"
        exit 1
    fi
fi

say "installing ${missing[*]}"
# A list that could not be fetched is a failure, not a warning (apt-get(8)): else its packages would seem not to exist.
updated=yes
"$three_tries" "${as_root[@]}" apt-get update -q -o APT::Update::Error-Mode=any </dev/null >&2 || {
    updated=
    say "apt-get update failed; trying with the lists that are there"
}
available=() unavailable=()
for package in "${missing[@]}"; do
    # A package that this release does not carry must not keep the others away.
    if why="$(apt-get install --simulate -q "$package" 2>&1 </dev/null)"; then available+=("$package"); else
        unavailable+=("$package")
        say "$package cannot be installed here: ${why##*$'\n'}"
    fi
done

# Which packages this release does not carry is known only where the lists are whole.
finish() {
    if [ ${#unavailable[@]} -eq 0 ]; then exit 0; fi
    if [ "$updated" ]; then
        say "not installed: ${unavailable[*]}; tests that need them are skipped"
        exit 0
    fi
    say "not installed: ${unavailable[*]}; the lists of packages could not be fetched (above), and those that are here are too old or empty"
    say "run this again when the network is there, or set SYSTEM_PACKAGES=skip to run the tests without them"
    exit 1
}
if [ ${#available[@]} -eq 0 ]; then finish; fi

# The tests want the sshd binary, not a listening service: keep packages from starting daemons while they are installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
    # shellcheck disable=SC2064
    trap "${as_root[*]} rm -f $policy" EXIT
fi
"$three_tries" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${available[@]}" \
    </dev/null >&2

# disable PACKAGES UNIT...: the tests start all daemons themselves, so none of these packages is to start one at the next boot.
disable() {
    if ! [[ " ${available[*]} " =~ \ ($1)\  ]] || ! command -v systemctl >/dev/null; then return 0; fi
    if "${as_root[@]}" systemctl disable "${@:2}" >/dev/null 2>&1; then
        say "${BASH_REMATCH[1]} was installed for the tests; its own services are left disabled"
    else
        say "${BASH_REMATCH[1]} was installed for the tests, and may start by itself at the next boot: systemctl disable ${*:2}  failed"
    fi
}
disable openssh-server ssh.service ssh.socket
disable 'docker.io|podman' docker.service docker.socket containerd.service podman.socket podman.service \
    podman-auto-update.timer podman-restart.service
disable 'munge|slurmctld|slurmd' munge.service slurmctld.service slurmd.service
disable slurmdbd slurmdbd.service
finish
