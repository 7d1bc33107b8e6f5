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
"$three_tries" "${as_root[@]}" apt-get update -q -o APT::Update::Error-Mode=any </dev/null >&2 ||
    say "apt-get update failed; trying with the lists that are there"
available=()
for package in "${missing[@]}"; do
    # A package that this release does not carry must not keep the others away.
    if apt-get install --simulate -q "$package" >/dev/null 2>&1 </dev/null; then available+=("$package"); else
        say "no package $package on this release; tests that need it are skipped"
    fi
done
if [ ${#available[@]} -eq 0 ]; then exit 0; fi

# The tests want the sshd binary, not a listening service: keep packages from starting daemons while they are installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    "${as_root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
    # shellcheck disable=SC2064
    trap "${as_root[*]} rm -f $policy" EXIT
fi
"$three_tries" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${available[@]}" \
    </dev/null >&2
if [[ " ${available[*]} " == *" openssh-server "* ]] && command -v systemctl >/dev/null; then
    # Not at the next boot either.
    "${as_root[@]}" systemctl disable ssh.service ssh.socket >/dev/null 2>&1 || true
    say "openssh-server was installed for the tests; its own service is left disabled"
fi
if [[ " ${available[*]} " =~ \ (docker.io|podman)\  ]] && command -v systemctl >/dev/null; then
    # The tests start a daemon of their own; none is to come with the next boot.
    "${as_root[@]}" systemctl disable docker.service docker.socket containerd.service podman.socket podman.service \
        podman-auto-update.timer podman-restart.service >/dev/null 2>&1 || true
    say "container runtimes were installed for the tests; their own services are left disabled"
fi
if [[ " ${available[*]} " =~ \ (munge|slurmctld|slurmd)\  ]] && command -v systemctl >/dev/null; then
    # The tests start all of it themselves, each with a configuration of its own.
    "${as_root[@]}" systemctl disable munge.service slurmctld.service slurmd.service >/dev/null 2>&1 || true
    say "Slurm was installed for the tests; its own services are left disabled"
fi
