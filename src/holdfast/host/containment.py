"""The containment ladder: which rungs work on this box, tried and not guessed, and which one a run takes.

Theory. Whether a rung works depends on the kernel, its settings, the container around us, our rights and our place in
the cgroup tree; no table knows all that. So each rung is tried for real in a throw-away child under a deadline: a PID
namespace is entered and its /proc mounted, a control group is made, joined and killed. The answers hold for one boot,
kernel, user, capability set, cgroup place and namespace, and are kept under that key in the user's own cache, which may
be lost or lie at no cost but a failed start: the run itself makes the same calls and reports their failure.

The rungs themselves live in `namespaces`, `cgroups` and `members`. This module must not know runs.
"""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.job import Rung
from . import libc
from .cgroup_tree import Hierarchies, discover
from .cgroups import create
from .clock import boot_id
from .namespaces import enter_pid_namespace, explain_refusal, finish_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LADDER = (Rung.PID_NAMESPACE, Rung.CGROUP_V2, Rung.CGROUP_V1, Rung.SUBREAPER, Rung.PROCESS_GROUP)
"""Best first."""
PROBE_DEADLINE_S = 5.0
MOST_CACHED = 16
CACHE_SCHEMA = 1
NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Probed:
    """One rung tried here: `refusal` is None when it works, else why it does not."""

    rung: Rung
    refusal: str | None

    @property
    def works(self) -> bool:
        """Whether a run may take it."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class ChosenRung:
    """The rung a run takes, None when the one that was asked for by name does not work; and why better ones do not."""

    rung: Rung | None
    rejected: tuple[Probed, ...] = ()

    def describe(self) -> str:
        """For people and the manifest."""
        reasons = "; ".join(f"{probed.rung.value}: {probed.refusal}" for probed in self.rejected)
        if self.rung is None:
            return f"not available here ({reasons})"
        return self.rung.value + (f" (not better because {reasons})" if reasons else "")


def choose(wanted: Rung = Rung.AUTO, *, fresh: bool = False) -> ChosenRung:
    """The best rung that works here, or the wanted one if it works. `fresh` tries again, whatever the cache says."""
    probed = probe_rungs(fresh=fresh)
    if wanted is not Rung.AUTO:
        answer = next(one for one in probed if one.rung is wanted)
        return ChosenRung(wanted) if answer.works else ChosenRung(None, (answer,))
    rejected: list[Probed] = []
    for one in probed:
        if one.works:
            return ChosenRung(one.rung, tuple(rejected))
        rejected.append(one)
    return ChosenRung(None, tuple(rejected))


def probe_rungs(*, fresh: bool = False, deadline_s: float = PROBE_DEADLINE_S) -> tuple[Probed, ...]:
    """Every rung, best first, with whether it works here; from this boot's cache unless `fresh`.

    The caller should be single-threaded: children are forked.
    """
    key = _cache_key()
    known = None if fresh else _read_cache(key)
    if known is not None:
        return known
    found = tuple(Probed(rung, _try_rung(rung, deadline_s)) for rung in LADDER)
    if not any(one.refusal is not None and one.refusal.startswith(NO_ANSWER) for one in found):
        # A box that was too slow once is not one that cannot.
        _write_cache(key, found)
    return found


def _try_rung(rung: Rung, deadline_s: float) -> str | None:
    if rung is Rung.PID_NAMESPACE:
        return try_in_child(_try_namespace, deadline_s=deadline_s)
    if rung in (Rung.CGROUP_V2, Rung.CGROUP_V1):
        return _try_group(rung, deadline_s)
    if rung is Rung.SUBREAPER:
        return try_in_child(libc.set_child_subreaper, deadline_s=deadline_s)
    return None


def _try_namespace() -> None:
    try:
        entered = enter_pid_namespace()
    except OSError as error:
        raise OSError(error.errno, explain_refusal(error)) from error

    def finish() -> None:
        try:
            finish_namespace(entered)
        except OSError as error:
            raise OSError(error.errno, explain_refusal(error)) from error
        if os.readlink("/proc/self") != "1":
            raise OSError(0, "a fresh /proc does not show the new namespace")

    refusal = try_in_child(finish, deadline_s=PROBE_DEADLINE_S)
    if refusal is not None:
        raise OSError(0, refusal)


def _try_group(rung: Rung, deadline_s: float) -> str | None:
    places = discover()
    unified = rung is Rung.CGROUP_V2
    if unified and places.unified is None:
        return "no cgroup v2 tree is mounted"
    if not unified and not places.v1:
        return "no cgroup v1 tree is mounted"
    only = Hierarchies(places.unified, ()) if unified else Hierarchies(None, places.v1)
    group = create(f"probe-{os.getpid()}-{os.urandom(4).hex()}", hierarchies=only)
    if group is None:
        paths = [place.path for place in ([places.unified] if unified and places.unified else places.v1)]
        return f"no group can be made below {paths[0]} by uid {os.geteuid()}"
    try:
        if unified and not group.can_kill_at_once:
            return "this kernel has no cgroup.kill (Linux 5.14)"
        if not unified and "freezer" not in group.v1:
            return "no v1 freezer: what forks while it is killed could slip through"
        return try_in_child(group.add, deadline_s=deadline_s)
    finally:
        group.kill()
        _remove_when_empty(group.remove)


def _remove_when_empty(remove: Callable[[], bool]) -> None:
    # An ended process leaves its group a moment after it can be waited for.
    for _ in range(100):
        if remove():
            return
        select.poll().poll(1)


def try_in_child(attempt: Callable[[], object], *, deadline_s: float) -> str | None:
    """Run `attempt` in a throw-away child; None when it returned, else what it raised, or that it gave no answer.

    A child that does not answer is killed, and left to the kernel if it does not die at once.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _run_attempt(attempt, writer)
    os.close(writer)
    try:
        words = _read_until(reader, time.monotonic() + deadline_s)
    finally:
        os.close(reader)
    if words is None:
        _abandon(child)
        return f"{NO_ANSWER} within {deadline_s:g} s"
    status = os.waitpid(child, 0)[1]
    if words.startswith(b"+"):
        return None
    return words.decode("utf-8", "replace") or f"the trial ended with status {status}"


def _abandon(child: int) -> None:
    # Our own unreaped child: the pid cannot mean anybody else. One stuck in the kernel must not hold us up.
    os.kill(child, signal.SIGKILL)
    for _ in range(200):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        select.poll().poll(1)


def _run_attempt(attempt: Callable[[], object], writer: int) -> None:
    words = b"+"
    try:
        attempt()
    except OSError as error:
        words = (error.strerror or str(error)).encode("utf-8", "replace")
    except BaseException as error:  # noqa: BLE001 - a child must never return into its parent's code
        words = repr(error).encode("utf-8", "replace")
    try:
        os.write(writer, words[:4096])
    finally:
        os._exit(0)


def _read_until(reader: int, end: float) -> bytes | None:
    """What the child says, up to the end of file; None when it does not come to an end in time."""
    poll, words = select.poll(), b""
    poll.register(reader, select.POLLIN)
    while poll.poll(max(0.0, end - time.monotonic()) * 1000):
        chunk = os.read(reader, 4096)
        if not chunk:
            return words
        words += chunk
    return None


# The cache is a convenience, so its every failure is silence: the rungs are then simply tried again.
def _cache_key() -> str:
    facts = [f"schema={CACHE_SCHEMA}", boot_id(), os.uname().release, f"uid={os.geteuid()}"]
    for name in ("pid", "user", "mnt", "cgroup"):
        try:
            facts.append(f"{name}={os.stat(f'/proc/self/ns/{name}').st_ino}")
        except OSError:
            facts.append(f"{name}=?")
    for path, starts in (("/proc/self/cgroup", ("",)), ("/proc/self/status", ("CapEff:", "NoNewPrivs:", "Seccomp:"))):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                facts += [line.strip() for line in file if line.startswith(tuple(starts))]
        except OSError:
            facts.append(f"{path}=?")
    import zlib

    text = "\n".join(facts).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"


def _cache_path() -> str | None:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return f"{runtime}/holdfast/containment.json"
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME", "") and f"{os.environ['HOME']}/.cache")
    return f"{home}/holdfast/containment.json" if home else None


def _load() -> dict[str, dict[str, str | None]]:
    import json

    path = _cache_path()
    if path is None:
        return {}
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return {}
            content = json.loads(file.read(1 << 20))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_cache(key: str) -> tuple[Probed, ...] | None:
    entry = _load().get(key)
    if not isinstance(entry, dict) or set(entry) != {rung.value for rung in LADDER}:
        return None
    if not all(value is None or isinstance(value, str) for value in entry.values()):
        return None
    return tuple(Probed(rung, entry[rung.value]) for rung in LADDER)


def _write_cache(key: str, found: Iterable[Probed]) -> None:
    import json

    path = _cache_path()
    if path is None:
        return
    known = {name: entry for name, entry in _load().items() if name != key}
    kept = dict(list(known.items())[-(MOST_CACHED - 1) :])
    kept[key] = {one.rung.value: one.refusal for one in found}
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(kept, file)
        os.rename(temporary, path)
    except OSError:
        return
