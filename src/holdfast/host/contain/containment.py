"""The containment ladder: which levels work on this box, tried and not guessed, and which one a run takes.

Theory. Whether a level works depends on the kernel, its settings, the container around us, our rights and our place in
the cgroup tree; no table knows all that. So each level is tried for real in a throw-away child under a deadline: a PID
namespace is entered and its /proc mounted, a control group is made, joined and killed. The answers hold for one boot,
kernel, user, capability set, cgroup place and namespace, and are kept under that key in the user's own cache, which may
be lost or lie at no cost but a failed start: the run itself makes the same calls and reports their failure.

The levels themselves live in `namespaces`, `create` and `members`. This module must not know runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import zlib
from collections.abc import Callable, Iterable

from holdfast.host.clock import boot_id
from holdfast.host.process import libc
from holdfast.model.job import IsolationLevel
from holdfast.model.record import record

from .create import create_group
from .namespaces import enter_pid_namespace, explain_refusal, finish_namespace
from .tree import Hierarchies, find_cgroups

LADDER = (
    IsolationLevel.PID_NAMESPACE,
    IsolationLevel.CGROUP_V2,
    IsolationLevel.CGROUP_V1,
    IsolationLevel.SUBREAPER,
    IsolationLevel.PROCESS_GROUP,
)
"""Best first."""
GROUPS = frozenset({IsolationLevel.CGROUP_V2, IsolationLevel.CGROUP_V1})
HIDES = "a control group of our own would hide the job from the scheduler"
CONTAINERS_OWN = "the container has one of its own"
PROBE_DEADLINE_S = 5.0
MOST_CACHED = 16
CACHE_SCHEMA = 1
NO_ANSWER = "no answer"


@record
class ProbedLevel:
    """One level tried here: `refusal` is None when it works, else why it does not."""

    level: IsolationLevel
    refusal: str | None

    @property
    def works(self) -> bool:
        """Whether a run may take it."""
        return self.refusal is None


@record
class ChosenLevel:
    """The level a run takes, None when the one that was asked for by name does not work; and why better ones do not."""

    level: IsolationLevel | None
    rejected: tuple[ProbedLevel, ...] = ()

    def describe(self) -> str:
        """For people and the manifest."""
        reasons = "; ".join(f"{probed.level.value}: {probed.refusal}" for probed in self.rejected)
        if self.level is None:
            return f"not available here ({reasons})"
        return self.level.value + (f" (not better because {reasons})" if reasons else "")


def choose_level(
    wanted: IsolationLevel = IsolationLevel.AUTO, *, fresh: bool = False, groups: bool = True, namespace: bool = True
) -> ChosenLevel:
    """The best level that works here, or the wanted one if it works. `fresh` tries again, whatever the cache says.

    Without `groups` none that is a control group is taken: a scheduler that ends a job by the group that it made for it
    does not look into ours. Without `namespace` no PID namespace is taken: a runtime that makes one of its own would
    write down pids that nobody outside knows.
    """
    probed = probe_levels(fresh=fresh)
    if not groups:
        probed = tuple(ProbedLevel(one.level, HIDES) if one.level in GROUPS else one for one in probed)
    if not namespace:
        inner = IsolationLevel.PID_NAMESPACE
        probed = tuple(ProbedLevel(inner, CONTAINERS_OWN) if one.level is inner else one for one in probed)
    if wanted is not IsolationLevel.AUTO:
        answer = next(one for one in probed if one.level is wanted)
        return ChosenLevel(wanted) if answer.works else ChosenLevel(None, (answer,))
    rejected: list[ProbedLevel] = []
    for one in probed:
        if one.works:
            return ChosenLevel(one.level, tuple(rejected))
        rejected.append(one)
    return ChosenLevel(None, tuple(rejected))


def probe_levels(*, fresh: bool = False, deadline_s: float = PROBE_DEADLINE_S) -> tuple[ProbedLevel, ...]:
    """Every level, best first, with whether it works here; from this boot's cache unless `fresh`.

    The caller should be single-threaded: children are forked.
    """
    key = _cache_key()
    known = None if fresh else _read_cache(key)
    if known is not None:
        return known
    found = tuple(ProbedLevel(level, _try_level(level, deadline_s)) for level in LADDER)
    if not any(one.refusal is not None and one.refusal.startswith(NO_ANSWER) for one in found):
        # A box that was too slow once is not one that cannot.
        _write_cache(key, found)
    return found


def _try_level(level: IsolationLevel, deadline_s: float) -> str | None:
    if level is IsolationLevel.PID_NAMESPACE:
        return try_in_child(_try_namespace, deadline_s=deadline_s)
    if level in (IsolationLevel.CGROUP_V2, IsolationLevel.CGROUP_V1):
        return _try_group(level, deadline_s)
    if level is IsolationLevel.SUBREAPER:
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


def _try_group(level: IsolationLevel, deadline_s: float) -> str | None:
    places = find_cgroups()
    unified = level is IsolationLevel.CGROUP_V2
    if unified and places.unified is None:
        return "no cgroup v2 tree is mounted"
    if not unified and not places.v1:
        return "no cgroup v1 tree is mounted"
    only = Hierarchies(places.unified, ()) if unified else Hierarchies(None, places.v1)
    group = create_group(f"probe-{os.getpid()}-{os.urandom(4).hex()}", hierarchies=only)
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


# The cache is a convenience, so its every failure is silence: the levels are then simply tried again.
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

    text = "\n".join(facts).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"


def _cache_path() -> str | None:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return f"{runtime}/holdfast/containment.json"
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME", "") and f"{os.environ['HOME']}/.cache")
    return f"{home}/holdfast/containment.json" if home else None


def _load() -> dict[str, dict[str, str | None]]:
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


def _read_cache(key: str) -> tuple[ProbedLevel, ...] | None:
    entry = _load().get(key)
    if not isinstance(entry, dict) or set(entry) != {level.value for level in LADDER}:
        return None
    if not all(value is None or isinstance(value, str) for value in entry.values()):
        return None
    return tuple(ProbedLevel(level, entry[level.value]) for level in LADDER)


def _write_cache(key: str, found: Iterable[ProbedLevel]) -> None:
    path = _cache_path()
    if path is None:
        return
    known = {name: entry for name, entry in _load().items() if name != key}
    kept = dict(list(known.items())[-(MOST_CACHED - 1) :])
    kept[key] = {one.level.value: one.refusal for one in found}
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(kept, file)
        os.rename(temporary, path)
    except OSError:
        return
