"""A PID namespace for one run: the kernel ends everything in it with its first process.

Theory. The launcher calls `enter_pid_namespace` and forks; that child is process 1 of the new namespace (the keeper)
and calls `finish_namespace`: mounts of the host still come in but ours never go out, /proc shows the run's own
processes, data directories are read-only. Whoever is not root gets a user namespace around it, in which the user's and
the group's number map to themselves, so files look the same inside. What a user namespace costs: other accounts' files
show as `nobody`, and set-user-id programs (sudo, fusermount) do not gain rights.

No tool of the system is run. A mount of ours can never reach the host: propagation is cut first, and where it cannot be
cut nothing is mounted. Source: pid_namespaces(7), user_namespaces(7), mount_namespaces(7).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Sequence

from holdfast.host.files.filesystems import unescape
from holdfast.host.process import libc
from holdfast.model.record import record

KEPT_OPTIONS = {"nosuid": libc.MS_NOSUID, "nodev": libc.MS_NODEV, "noexec": libc.MS_NOEXEC}
"""Options that a remount in a user namespace must repeat: they are locked. Access-time options keep themselves."""


@record
class EnteredNamespace:
    """What `enter_pid_namespace` did: the inode of the PID namespace that was left, and whether it took a user's."""

    outer: int
    user_namespace: bool


def read_namespace(pid: int | None = None) -> int | None:
    """The inode that names a process's PID namespace (our own when `pid` is None); None when we may not know."""
    try:
        return os.stat(f"/proc/{'self' if pid is None else pid}/ns/pid").st_ino
    except OSError:
        return None


def enter_pid_namespace() -> EnteredNamespace:
    """Leave for new PID and mount namespaces; the next child is process 1 there. The caller itself keeps its pid.

    The caller must be single-threaded. Root tries without a user namespace first.

    Raises:
        OSError: refused; `explain_refusal` has words for it.
    """
    outer = read_namespace()
    if outer is None:
        raise OSError(errno.ENOENT, "/proc/self/ns/pid cannot be read")
    flags = libc.CLONE_NEWPID | libc.CLONE_NEWNS
    if os.geteuid() == 0:
        try:
            libc.unshare(flags)
        except PermissionError:
            pass
        else:
            return EnteredNamespace(outer, user_namespace=False)
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(flags | libc.CLONE_NEWUSER)
    # A process may map its own group only once it has given up changing groups.
    for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, content.encode("ascii"))
        finally:
            os.close(descriptor)
    return EnteredNamespace(outer, user_namespace=True)


def finish_namespace(entered: EnteredNamespace, *, read_only: Sequence[str] = (), writable: Sequence[str] = ()) -> None:
    """Make the namespace whole, as its process 1: propagation, /proc, read-only data.

    Args:
        entered: What the launcher's call answered.
        read_only: Existing files and directories that the job must not write to (RAIL-07).
        writable: Directories inside of those that stay as they are: the run directory.

    Raises:
        OSError: the kernel refused; the process must exit, the host has seen nothing.
    """
    _require_own_namespace(entered)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_SLAVE)
    libc.mount("proc", "/proc", kind="proc", flags=libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)
    bind_read_only(read_only, writable=writable)


def _require_own_namespace(entered: EnteredNamespace) -> None:
    if os.getpid() != 1 or read_namespace() in (None, entered.outer):
        raise OSError(errno.EPERM, "not process 1 of a PID namespace of its own")


def bind_read_only(paths: Iterable[str], *, writable: Sequence[str] = ()) -> None:
    """Make paths read-only in our mount namespace, with every mount below them, except what is in `writable`.

    Descriptors that were open before still write; the working directory is entered anew, so that it is under the new
    rule.

    Raises:
        OSError: a path does not exist, is the root, or stays writable after all.
    """
    targets = [_resolve(path) for path in paths]
    spared = [_resolve(path) for path in writable]
    for path in spared:
        # A mount of its own, which the recursive bind below then carries along.
        if any(_is_within(path, target) for target in targets):
            libc.mount(path, path, flags=libc.MS_BIND | libc.MS_REC)
    for target in targets:
        if target == "/":
            raise OSError(errno.EINVAL, "the whole file system cannot be made read-only for a job", target)
        libc.mount(target, target, flags=libc.MS_BIND | libc.MS_REC)
        for point, options in _mounts_below(target):
            if any(_is_within(point, path) for path in spared):
                continue
            kept = sum(flag for name, flag in KEPT_OPTIONS.items() if name in options)
            libc.mount("none", point, flags=libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY | kept)
        if not os.statvfs(target).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, "still writable after a read-only bind", target)
    if targets:
        os.chdir(os.getcwd())


def _resolve(path: str) -> str:
    try:
        return os.path.realpath(path, strict=True)
    except OSError as error:
        # realpath names the part that is missing; people know the whole.
        raise OSError(error.errno, error.strerror, path) from error


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _mounts_below(target: str) -> list[tuple[str, set[str]]]:
    found: dict[str, set[str]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ")
            point = unescape(fields[4])
            if _is_within(point, target):
                # Of mounts stacked on one point the last is on top, and the one that a remount reaches.
                found[point] = set(fields[5].split(","))
    return list(found.items())


def signal_namespace(entered: EnteredNamespace, number: int = signal.SIGKILL) -> bool:
    """As process 1 of a run's namespace: signal everything else in it, in one step that no fork can slip through.

    Returns:
        False when there was nothing left.

    Raises:
        OSError: the caller is not process 1 of a namespace of its own; nothing was signalled.
    """
    _require_own_namespace(entered)
    try:
        # -1 means every process that the caller can see, except itself and process 1: here exactly the run. kill(2).
        os.kill(-1, number)
    except ProcessLookupError:
        return False
    return True


def explain_refusal(error: OSError) -> str:
    """Why namespaces are refused here, in words and with the setting to look at."""
    seen = error.strerror or str(error)
    for path, bad, words in (
        ("/proc/sys/user/max_user_namespaces", "0", "user namespaces are switched off (user.max_user_namespaces = 0)"),
        ("/proc/sys/user/max_pid_namespaces", "0", "PID namespaces are switched off (user.max_pid_namespaces = 0)"),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "user namespaces are for root only (kernel.unprivileged_userns_clone = 0)",
        ),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1)",
        ),
    ):
        try:
            with open(path, encoding="ascii") as file:
                value = file.read().strip()
        except OSError:
            continue
        if value == bad and not (os.geteuid() == 0 and "userns" in path):
            return f"{words}: {seen}"
    if "mount proc" in seen and error.errno == errno.EPERM:
        return f"a fresh /proc is refused, as in a container that hides parts of its own: {seen}"
    return seen
