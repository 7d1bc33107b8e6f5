"""Runs Slurm's commands: one environment, one deadline, one table of what their refusals mean.

What would change a command behind our back (``SBATCH_*``, ``SQUEUE_FORMAT``, a locale, the variables of a job that we
are typed in) is left out of its environment; times come as seconds since 1970.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.control_characters import one_line
from holdfast.core.slurm.arrays import join_ids
from holdfast.core.slurm.texts import SQUEUE_FORMAT, QueuedLine, read_squeue
from holdfast.host.clock import monotonic_s
from holdfast.host.process import libc
from holdfast.model.errors import CutOff, HoldfastError, PreflightFailed, Unreachable
from holdfast.model.scheduler import SCHEDULER_AWAY

LIMIT_S = 20.0
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
"""Of Slurm's own variables those that say where it is."""
FOREIGN = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SACCT_", "SCONTROL_", "SRUN_", "SALLOC_", "LC_")
LONGEST_WORDS = 500
MOST_BYTES = 32 << 20
"""More than this of one answer is no answer: squeue has about 150 bytes for each job of an account."""
MOST_ERROR_BYTES = 1 << 16
_PREFIX = re.compile(r"\w+: (?:error|fatal): ")
_NO_SUCH_JOB = "invalid job id"
MOST_WORDS = 500
"""Words of one command; each names up to `core.slurm.arrays.MOST_RANGES` ranges of tasks."""
CANCEL_LIMIT_S = 120.0
AWAY = re.compile(
    r"unable to contact slurm controller|connection refused|socket timed out|communication (?:connection|shutdown)"
    r"|unable to establish (?:control|config)|could not establish a configuration|zero bytes were transmitted"
    r"|slurm backup controller in standby|no controllers? |protocol authentication error|munge.*socket",
    re.IGNORECASE,
)
"""Its controller, or the way to it, is not there. Source: slurm/slurm_errno.h of 22.05, auth/munge."""


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a command of Slurm is started with."""
    kept = {name: value for name, value in environ.items() if name in KEPT or not name.startswith(FOREIGN)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def call(
    argv: Sequence[str], *, environ: Mapping[str, str] | None = None, limit_s: float = LIMIT_S, said: bool = False
) -> str:
    """What a command printed, or with `said` wrote beside that; `environ` is made of ours without one.

    Raises:
        Unreachable: its controller does not answer; nothing was done.
        CutOff: no answer came; whether it was done is not known.
        PreflightFailed: there is no such command, or Slurm refuses; says in its own words why.
    """
    known = clean_environment(os.environ) if environ is None else environ
    try:
        child = subprocess.Popen(
            argv,
            env=known,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # A look in a child that is given up leaves no squeue behind that hangs.
            preexec_fn=lambda: libc.set_parent_death_signal(signal.SIGKILL),  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        hint = "the commands of Slurm must be on the PATH of a non-interactive login there"
        raise PreflightFailed(f"{argv[0]} cannot be started: {error.strerror}", hint=hint) from error
    with child:
        try:
            out, err = _read(child, limit_s)
        except _NoAnswer as silent:
            raise CutOff(f"{argv[0]} {silent}", details={"why": SCHEDULER_AWAY}) from None
        finally:
            if child.returncode is None:
                # Not waited for yet, so its number is its own; what it has started may hold its output open.
                os.killpg(child.pid, signal.SIGKILL)
    if child.returncode == 0:
        return (err if said else out).decode("utf-8", "replace")
    raise _explain(argv[0], err.decode("utf-8", "replace"), child.returncode)


def ask_squeue(*words: str, limit_s: float = LIMIT_S) -> tuple[QueuedLine, ...]:
    """The jobs that squeue lists with these words, in all partitions: those that are hidden from others, too.

    Raises:
        PlaceError, PreflightFailed: as of `call`.
    """
    mark = os.urandom(8).hex()
    argv = ("squeue", "--noheader", "--all", *words, f"--format={mark}|{SQUEUE_FORMAT}")
    return read_squeue(call(argv, limit_s=limit_s), mark)


def cancel_jobs(job_ids: Iterable[str]) -> None:
    """Have Slurm end jobs, or never start them; those that are over, or that it does not know any more, are no error.

    Raises:
        PlaceError, PreflightFailed: as of `call`.
    """
    words = join_ids(tuple(job_ids))
    for begin in range(0, len(words), MOST_WORDS):
        try:
            # --quiet: a job that is over by now is no error. Source: scancel(1).
            call(("scancel", "--quiet", *words[begin : begin + MOST_WORDS]), limit_s=CANCEL_LIMIT_S)
        except PreflightFailed as error:
            if _NO_SUCH_JOB not in str(error).lower():
                raise


class _NoAnswer(Exception):
    """What stands after the command's name: it took too long, or said too much."""


def _read(child: subprocess.Popen[bytes], limit_s: float) -> tuple[bytes, bytes]:
    """All that a command says until it has ended, within its limits."""
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = child.stdout.fileno(), child.stderr.fileno()
    said = {out: bytearray(), err: bytearray()}
    end_s = monotonic_s() + limit_s
    poller = select.poll()
    left = {out, err}
    for descriptor in left:
        poller.register(descriptor, select.POLLIN)
    while left:
        ready = poller.poll(max(0, int((end_s - monotonic_s()) * 1000)))
        if not ready:
            raise _NoAnswer(f"gave no answer within {limit_s:g} s")
        for descriptor, _ in ready:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                poller.unregister(descriptor)
                left.discard(descriptor)
            elif descriptor == out or len(said[err]) < MOST_ERROR_BYTES:
                said[descriptor] += chunk
        if len(said[out]) > MOST_BYTES:
            raise _NoAnswer(f"answered with more than {MOST_BYTES >> 20} MiB, which holdfast does not read")
    try:
        child.wait(timeout=max(0.1, end_s - monotonic_s()))
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"gave no answer within {limit_s:g} s") from None
    return bytes(said[out]), bytes(said[err])


def _explain(name: str, said: str, code: int) -> HoldfastError:
    lines = [_PREFIX.sub("", line) for line in said.splitlines() if line.strip()]
    words = one_line("; ".join(lines) or f"exit code {code}", LONGEST_WORDS)
    if code < 0:
        return CutOff(f"{name} was killed by {signal.Signals(-code).name}: {words}", details={"why": SCHEDULER_AWAY})
    if AWAY.search(said):
        # What timed out may have been done; what could not be sent was not.
        kind = CutOff if "timed out" in said.lower() else Unreachable
        return kind(f"Slurm's controller does not answer: {words}", details={"why": SCHEDULER_AWAY})
    return PreflightFailed(f"{name} refuses: {words}", hint=_advise(said), details={"said": words})


_ADVICE = (
    # Whole messages first: some name more than what is wrong. Source: slurm_errtab of common/slurm_errno.c, 22.05.
    (
        "invalid account or account/partition",
        "`sacctmgr show assoc user=$USER` lists your accounts with their partitions",
    ),
    (
        "job violates accounting/qos policy",
        "wait until fewer of your jobs are there, or ask for less: `sacctmgr show assoc user=$USER` shows the limits",
    ),
    ("time limit is invalid (missing", "say how long: --slurm time=MINUTES, within the limits that `sinfo -s` shows"),
    ("not permitted to use this partition", "`scontrol show partition` says who may use which (AllowAccounts ...)"),
    ("invalid feature", "`sinfo -o '%N %f'` shows the features of the nodes"),
    ("invalid node name", "`sinfo -N` lists the nodes"),
    ("reservation", "`scontrol show reservation` lists them"),
    ("partition", "`sinfo -s` lists the partitions"),
    ("node configuration is not available", "ask for what one node has: `sinfo -N -o '%N %c %m %G'`"),
    ("time limit", "ask for less time, or another partition: `sinfo -s` shows the limits"),
    ("account", "`sacctmgr show assoc user=$USER` lists your accounts"),
    ("qos", "`sacctmgr show qos` lists them"),
    ("gres", "`sinfo -o '%N %G'` shows the cards of the nodes"),
    ("access", "ask who runs the cluster"),
)


def _advise(said: str) -> str:
    lower = said.lower()
    return next((advice for words, advice in _ADVICE if words in lower), "change what it says, and type it again")
