"""A place of our own from systemd: this process moves into a transient, delegated scope, where it may make groups.

Theory. Who logs in over ssh sits in ``session-N.scope``, which belongs to root: no control group can be made there. The
account's own systemd (the user manager) may; a scope that it makes with ``Delegate=yes`` belongs to the account, and
the kernel's controllers with it. The supervisor asks for its own pid to be moved; no process comes in between, children
come along, and the scope vanishes with its last process. As root the system's manager gives the same.

What a scope costs: it ends with the manager that made it. A user manager ends some seconds after the account's last
session, unless the account lingers; a session scope lives on as long as its processes do, unless the login manager has
been told to kill them. So a scope can turn a run that survives a logout into one that does not. `Logout` tells which
of the two it is here; who asks for a scope decides with it.

It asks over D-Bus with ``busctl`` (part of systemd), in a child with a deadline: a manager that hangs costs seconds.
Looking (`find_manager`) only reads files. Every failure is `ScopeUnavailable` with its reason, and nothing has changed.

Source: org.freedesktop.systemd1(5) "StartTransientUnit", systemd.scope(5), logind.conf(5), user@.service(5); tested
with systemd 252 under user-mode Linux (tests/uml/test_systemd_uml.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from holdfast.core.job.limits import CONTROLLERS
from holdfast.host.clock import monotonic_s
from holdfast.host.process.children import BoundedChild, read_children
from holdfast.host.process.sessions import is_lingering, leaves_no_session, read_login_manager
from holdfast.host.process.wait import wait_briefly
from holdfast.model.record import record

from .tree import find_cgroups

PATIENCE_S = 3.0
"""How long asking and moving may take together. Seen: 70 ms, most of it the start of busctl."""
ANSWER_LIMIT_BYTES = 65536
BUSCTL = ("/usr/bin/busctl", "/bin/busctl", "/run/current-system/sw/bin/busctl")
"""Never looked for on PATH: that is the job's, and an activated environment may bring tools of its own."""
MANAGER = (
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
    "ssa(sv)a(sa(sv))",
)


class ScopeUnavailable(Exception):
    """No scope: the message says why, for people."""


class Logout(str, Enum):
    """What the end of the account's last session does to a run in a scope, compared with a run that stays outside."""

    HARMLESS = "harmless"
    """The manager outlives every session (root's, or the account lingers)."""
    NO_WORSE = "no_worse"
    """It ends the scope, and it would end the run outside of it as well."""
    ENDS_SCOPE = "ends_scope"
    """It ends the scope; outside of it the run would go on."""


@record
class ScopeManager:
    """A systemd that can be asked for a scope.

    `bus` is its address, `slices` the cgroup directory under which its scopes are, `controllers` what it can hand down.
    """

    user: bool
    bus: str
    slices: str
    controllers: tuple[str, ...]
    logout: Logout

    def can_hold(self, limits: Iterable[str]) -> tuple[str, ...]:
        """Those of the named limits that a group inside a scope would hold."""
        return tuple(name for name in limits if CONTROLLERS.get(name) in self.controllers)


def is_systemd(*, root: str = "") -> bool:
    """Whether systemd is process 1, as far as can be seen from here.

    sd_booted(3) alone does not do: in a container that shows the host's /run the first process is another one, and our
    pid means another process to the manager.
    """
    return os.path.isdir(f"{root}/run/systemd/system") and _read(f"{root}/proc/1/comm") == "systemd"


def find_manager(account: str, *, uid: int | None = None, root: str = "", cgroup: str | None = None) -> ScopeManager:
    """The systemd that can give this process a scope; reads files only, and asks nobody.

    Args:
        account: The name of the account.
        uid: Its number (None: our own).
        root: Put in front of system paths, for tests.
        cgroup: The text of ``/proc/self/cgroup`` (None: ours).

    Raises:
        ScopeUnavailable: there is none, or nothing that it gives would help.
    """
    uid = os.geteuid() if uid is None else uid
    if not is_systemd(root=root):
        raise ScopeUnavailable("systemd is not process 1 here")
    unified = find_cgroups().unified if not root else None
    mount = unified.mount if unified is not None else f"{root}/sys/fs/cgroup"
    below = f"user.slice/user-{uid}.slice/user@{uid}.service" if uid else "system.slice"
    slices = f"{mount}/{below}"
    socket = f"{root}/run/user/{uid}/bus" if uid else f"{root}/run/dbus/system_bus_socket"
    if uid and not os.path.isdir(slices):
        raise ScopeUnavailable(f"the systemd of account {account} does not run ({slices} is missing)")
    if not os.path.exists(socket):
        raise ScopeUnavailable(f"the message bus {socket} is missing (package dbus-user-session)")
    controllers = tuple(_read(f"{slices}/cgroup.controllers").split())
    if not controllers:
        raise ScopeUnavailable(f"systemd hands down no controllers of cgroup v2 here ({slices}/cgroup.controllers)")
    logout = _judge_logout(account, uid, root, cgroup)
    return ScopeManager(uid != 0, f"unix:path={socket}", slices, controllers, logout)


def _judge_logout(account: str, uid: int, root: str, cgroup: str | None) -> Logout:
    if uid == 0 or is_lingering(account, root=root):
        return Logout.HARMLESS
    text = _read("/proc/self/cgroup") if cgroup is None else cgroup
    if f"/user@{uid}.service/" in text:
        return Logout.NO_WORSE
    login = read_login_manager(account, root=root)
    killed = login is not None and login.kills and not leaves_no_session(text)
    return Logout.NO_WORSE if killed else Logout.ENDS_SCOPE


def name_scope(run_id: str, attempt: int) -> str:
    """The name of an attempt's scope; a run id has only characters that a unit's name may have (systemd.unit(5))."""
    return f"holdfast-{run_id}.{attempt}.scope"


def build_call(unit: str, pid: int, *, spare_on_oom: bool) -> tuple[str, ...]:
    """The words for busctl that say "make this scope, put this process into it".

    `spare_on_oom`: since systemd 253 a scope in which the kernel ends a process for lack of memory is stopped as a
    whole, which would end the supervisor that has to report it; ``OOMPolicy=continue`` turns that off. Older ones
    refuse the property for scopes (seen with 252). Source: systemd.scope(5), systemd NEWS 253.
    """
    properties = [
        ("Description", "s", f"holdfast run {unit.removeprefix('holdfast-').removesuffix('.scope')}"),
        ("Delegate", "b", "true"),
        # A scope that failed is forgotten too, so that its name is free again.
        ("CollectMode", "s", "inactive-or-failed"),
        ("PIDs", "au", "1", str(pid)),
        *([("OOMPolicy", "s", "continue")] if spare_on_oom else []),
    ]
    words = [word for one in properties for word in one]
    return (*MANAGER, unit, "fail", str(len(properties)), *words, "0")


def join_scope(manager: ScopeManager, unit: str, *, patience_s: float = PATIENCE_S, program: str | None = None) -> str:
    """Move this process into a new scope of its own; returns the scope's cgroup path as the kernel tells it.

    On return we are in it, alone. `program` stands in for busctl in tests.

    Raises:
        ScopeUnavailable: we were not moved in time, and are where we were.
    """
    busctl = program or next((path for path in BUSCTL if os.access(path, os.X_OK)), None)
    if busctl is None:
        raise ScopeUnavailable("the program busctl (of systemd) is not installed")
    deadline = monotonic_s() + patience_s
    answer = ""
    for spare in (True, False):
        words = (busctl, f"--address={manager.bus}", "call", *build_call(unit, os.getpid(), spare_on_oom=spare))
        try:
            child = BoundedChild(words, {"LC_ALL": "C"}, ANSWER_LIMIT_BYTES, with_errors=True)
        except OSError as error:
            raise ScopeUnavailable(f"{busctl} could not be started: {error.strerror}") from error
        read_children([child], max(0.0, round(deadline - monotonic_s(), 1)))
        answer = child.data.decode(errors="replace").strip()
        if child.code != 0 and "OOMPolicy" in answer:
            continue
        if child.code != 0:
            raise ScopeUnavailable(f"systemd refused a scope: {child.describe('busctl')}: {answer or 'no answer'}")
        break
    # The answer is "a job was made"; the move follows.
    if not wait_briefly(lambda: _own_place().endswith(f"/{unit}"), deadline - monotonic_s()):
        raise ScopeUnavailable(f"systemd took the order ({answer}) and did not move us within {patience_s:g} s")
    return _own_place()


def _own_place() -> str:
    lines = _read("/proc/self/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return ""
