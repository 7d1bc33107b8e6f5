"""The declared smoke test: a cheap command on this box's CPU before the job, once for each tree of code (PRE-12).

It is run last, only where no other check has failed, without cards and with trackers off, in the job's working
directory and environment. Whether it passed is remembered for code that has a name: a tree that a desk sent, or a
commit that nothing was changed of. A failure is never remembered: what was wrong may have been mended.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.agent.view.observe import list_attempts
from holdfast.agent.view.source_change import read_origin
from holdfast.core.cards.choose import visible_devices
from holdfast.core.control_characters import one_line
from holdfast.core.digest import sha256_hex
from holdfast.core.job.environment import NO_CARDS
from holdfast.core.job.redact import redact_text
from holdfast.core.job.secret_names import read_uses
from holdfast.core.job.setup import leave_setup_out
from holdfast.host.box import read_box
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.contain.members import RunTree, empty_tree
from holdfast.host.files import files
from holdfast.host.files.secret_files import SecretUnusableError, read_variables
from holdfast.host.formats.bundle import find_library
from holdfast.host.process import libc
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import identify_self
from holdfast.model.record import record
from holdfast.store.paths import make_state_directory, state_directory

from .context import CheckContext, failed, passed, warned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.finding import Finding

MEMORY = "smoke.json"
MOST_REMEMBERED = 500
SHARE = 0.8
"""Of the deadline of all checks: the rest is for those before it, and for saying what went wrong."""
LEAST_S = 0.5
LAST_LINES = 6
LONGEST_WORDS = 800
TAIL_BYTES = 64 << 10
PIPE_BYTES = 1 << 20
"""All that a pipe holds at most."""
NICE = 10
EMPTY_WITHIN_S = 2.0
"""What it began is killed, which takes that long where a disk hangs."""
DECISIVE = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables, besides the job's own, with which another program or library would be tried."""
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""That whoever waits is gone, or that somebody at its terminal wants the end."""
TRACEBACK = b"Traceback (most recent call last)"
REMEDY = "correct it and start anew; --skip-smoke goes on without, and the record says so"


def check_smoke(situation: CheckContext) -> Iterator[Finding]:
    """The smoke test passes, or has passed for this code on this box."""
    spec = situation.spec
    if not spec.smoke:
        return
    name = " ".join(leave_setup_out(spec.smoke)[-3:])
    if spec.container.image is not None:
        yield warned("smoke", name, "is not run: the job's code runs in its image", "try it with a run of its own")
        return
    if spec.skip_smoke:
        yield warned("smoke", name, "was skipped, as asked for (skip_smoke)", "leave --skip-smoke out to have it run")
        return
    if situation.run_dir is None:
        yield passed("smoke", name, "is run before the start, unless it has passed for the same code")
        return
    code = _name_code(situation, situation.run_dir)
    before = code.recall()
    if before:
        yield passed("smoke", name, f"passed for this code on this box at {before}")
        return
    yield _run(situation, name, code.key)


def _run(situation: CheckContext, name: str, key: str) -> Finding:
    limit_s = max(LEAST_S, SHARE * situation.spec.timeouts.preflight_s - (time.time() - situation.now_epoch_s))
    began = monotonic_s()
    try:
        code, tail = _execute(situation, limit_s)
    except SecretUnusableError as error:
        return failed("smoke", name, f"could not be run: {error}", "push the secret, then start anew")
    except OSError as error:
        return failed("smoke", name, f"could not be run: {error.strerror}: {error.filename}", REMEDY)
    took_s = monotonic_s() - began
    last = redact_text(one_line(" | ".join(_list_last(tail)), LONGEST_WORDS)) or "nothing"
    if code is None:
        longer = "--timeout-preflight 10m (in a job file timeouts: {preflight: 10m})"
        more = f"make it smaller, or give the checks more time: {longer}"
        return failed("smoke", name, f"did not end within {limit_s:.0f} s; it said last: {last}", more)
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return failed("smoke", name, f"ended with {how} after {took_s:.1f} s; it said last: {last}", REMEDY)
    if TRACEBACK in tail:
        return failed("smoke", name, f"ended with 0 and a traceback; it said last: {last}", REMEDY)
    _remember(key)
    return passed("smoke", name, f"passed on the CPU in {took_s:.1f} s")


def _execute(situation: CheckContext, limit_s: float) -> tuple[int | None, bytes]:
    """Run it to its end; its exit code (None: it was killed at the limit), and the end of what it wrote.

    In a process of its own, the reaper of all that the test begins: what is left is ended with it, also when whoever
    waits here is killed.

    Raises:
        OSError: it cannot be started.
        SecretUnusableError: a secret that the job names cannot be read.
    """
    environ, waiting = _build_environment(situation), os.getpid()

    def work() -> dict[str, Any]:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in ENDINGS:
            signal.signal(number, _leave)
        libc.set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != waiting:
            _leave()
        libc.set_child_subreaper()
        try:
            code, tail = _follow(situation, environ, limit_s)
        except OSError as error:
            return {"errno": error.errno, "path": error.filename}
        finally:
            empty_tree(RunTree("", 0, keeper=identify_self()), deadline_s=EMPTY_WITHIN_S)
        return {"code": code, "tail": tail.decode("latin-1")}

    try:
        answer = Offload(work).wait(limit_s + 2 * EMPTY_WITHIN_S)
    except OffloadFailed as error:
        raise OSError(errno.EIO, str(error), "smoke") from error
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])
    return answer["code"], answer["tail"].encode("latin-1")


def _leave(*_: object) -> None:
    # One is enough: what was begun is being ended from here on.
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def _follow(situation: CheckContext, environ: dict[str, str], limit_s: float) -> tuple[int | None, bytes]:
    """As `_execute`, where nothing else is waited for: the end of a child wakes a pipe."""
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    child = subprocess.Popen(
        situation.spec.smoke,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=situation.spec.workdir,
        env=environ,
        start_new_session=True,
        preexec_fn=_leave_when_we_do,  # noqa: PLW1509 - the child of a process of one thread
    )
    assert child.stdout is not None
    said = child.stdout.fileno()
    tail, end = b"", monotonic_s() + limit_s
    poller = select.poll()
    for descriptor in (said, woken):
        poller.register(descriptor, select.POLLIN)
    # Its own end counts, not that of its output: what it left behind may keep that open.
    while child.poll() is None and (left_s := end - monotonic_s()) > 0:
        for descriptor, _ in poller.poll(int(left_s * 1000) + 1):
            chunk = os.read(descriptor, PIPE_BYTES)
            if descriptor == said:
                tail = (tail + chunk)[-TAIL_BYTES:]
            if not chunk:
                poller.unregister(said)
    code = child.poll()
    os.set_blocking(said, False)
    with suppress(BlockingIOError):
        tail = (tail + os.read(said, PIPE_BYTES))[-TAIL_BYTES:]
    return code, tail


def _leave_when_we_do() -> None:
    os.nice(NICE)
    libc.set_parent_death_signal(signal.SIGKILL)


def _build_environment(situation: CheckContext) -> dict[str, str]:
    """The job's variables and secrets, without cards, with trackers off; the training library can be imported."""
    environ = {**situation.job_environ, **read_variables(read_uses(situation.spec.secrets))}
    environ.update(visible_devices([NO_CARDS]))
    environ.update({"WANDB_MODE": "disabled", "HOLDFAST_SMOKE": "1"})
    try:
        library = find_library(situation.environ)
    except OSError:
        return environ
    environ["PYTHONPATH"] = ":".join(path for path in (environ.get("PYTHONPATH", ""), library) if path)
    return environ


def _list_last(tail: bytes) -> list[str]:
    return [line for line in tail.decode("utf-8", "replace").splitlines() if line.strip()][-LAST_LINES:]


@record
class _NamedCode:
    """As what a result is remembered (`key`), and as what else it may be known already."""

    key: str
    known_as: tuple[str, ...]

    def recall(self) -> str:
        """When it passed; empty where that is not known."""
        found = _read()
        return next((str(found[key]) for key in self.known_as if key in found), "")


def _name_code(situation: CheckContext, run_dir: str) -> _NamedCode:
    """What the result is of: command, setup and environment on this box with this code.

    A desk's tree is what it was. A commit is the first attempt's: people edit, and then restart, for which the test is
    run again. So its result is of this run alone, and so is that of code without a name.
    """
    spec = situation.spec
    origin = read_origin(run_dir)
    code, snapshot = origin.get("code"), origin.get("snapshot")
    git = snapshot.get("git") if isinstance(snapshot, dict) else None
    # A laid out copy lies in the run's own directory, which may be named in the command.
    words = [word.replace(run_dir, "") for word in spec.smoke]
    environ = {name: situation.job_environ.get(name) for name in (*DECISIVE, *spec.env)}

    def name_key(named: str) -> str:
        known = [read_box().machine_id, named, words, environ, spec.secrets]
        return sha256_hex(json.dumps(known, sort_keys=True).encode())[:32]

    if isinstance(code, dict):
        tree = name_key(f"tree {code.get('tree')} {code.get('workdir')}")
        return _NamedCode(tree, (tree,))
    run = name_key(f"run {os.path.basename(run_dir)}")
    if situation.ends_first:
        return _NamedCode(run, ())
    if not isinstance(git, dict) or not git.get("commit") or git.get("dirty") is not False:
        return _NamedCode(run, (run,))
    commit = name_key(f"commit {git['commit']}")
    first = max(list_attempts(run_dir), default=1) <= 1
    return _NamedCode(commit if first else run, (run, commit))


def _read() -> dict[str, str]:
    try:
        found = json.loads(files.read_bytes(f"{state_directory()}/{MEMORY}"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(at) for name, at in found.items()} if isinstance(found, dict) else {}


def _remember(key: str) -> None:
    """Where that cannot be written it is run again."""
    newest = sorted({**_read(), key: utc_now()}.items(), key=lambda item: item[1])[-MOST_REMEMBERED:]
    try:
        files.commit(f"{make_state_directory()}/{MEMORY}", json.dumps(dict(newest)).encode())
    except Exception:  # noqa: BLE001 - a memory is worth no run
        return
