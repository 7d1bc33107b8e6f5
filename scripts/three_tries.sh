#!/usr/bin/env bash
# Run a command that fetches something (apt, pip), three times at most: a package server that does not answer once is no reason to
# give up. Usage: three_tries.sh COMMAND [ARGUMENT]...; answers the status of the last try. PAUSE_S=5 is the time between two tries.
set -uo pipefail
status=127
for try in 1 2 3; do
    status=0
    "$@" || status=$?
    # A command that is not there, or that was interrupted, fares no better the next time.
    if [ $status -eq 0 ] || [ $status -ge 126 ]; then break; fi
    if [ "$try" -lt 3 ]; then
        echo "setup: try $try of 3 failed (exit $status): $*" >&2
        sleep "${PAUSE_S:-5}"
    fi
done
exit $status
