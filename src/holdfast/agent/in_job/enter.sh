# The first program of a job in a container: /bin/sh /run/holdfast/enter.sh COMMAND...
#
# Waits at the gate until the supervisor has made public who is inside, then becomes the command. No login shell and no
# file of the image is read (CTR-09). With a Python 3 in the image enter.py does it: that one also reaps, looks at the
# cards' device files and writes down the exact end.
room=/run/holdfast
# Apptainer sets a HOME of its own, and takes none from its caller.
if [ -n "${HOLDFAST_INNER_HOME-}" ]; then HOME=$HOLDFAST_INNER_HOME; export HOME; unset HOLDFAST_INNER_HOME; fi
if python=$(command -v python3 2>/dev/null); then exec "$python" -I -S "$room/enter.py" "$@"; fi
say() { printf '%s\n' "$*" >>"$room/said"; }
say "python none"
if ! command -v "$1" >/dev/null 2>&1; then
    say "absent $1"
    exit 127
fi
say ready
read -r word <"$room/gate" || exit 125
[ "$word" = go ] || exit 125
say begun
expected=
read -r expected <"$room/cards" || :
if [ "$expected" != "${CUDA_VISIBLE_DEVICES-}" ]; then
    say "mismatch CUDA_VISIBLE_DEVICES is ${CUDA_VISIBLE_DEVICES-not set}, leased is $expected"
    exit 78
fi
exec "$@"
