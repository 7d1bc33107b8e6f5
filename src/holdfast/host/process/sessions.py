"""What may end a run from outside: logout, a planned shutdown, the end of a session.

Reads the login manager's settings, whether the account may linger, systemd's planned shutdown, and the clocks of the
platforms that end sessions. Everything is read from files and variables; nothing is asked of a daemon, so nothing
hangs. None means "not known".
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.model.record import record


@record
class LoginManager:
    """How logins end here: `kills` is KillUserProcesses for this user, `source` the file that says so."""

    kills: bool
    source: str


@record
class SessionEnd:
    """A time at which this session or box ends: epoch seconds, and who says so."""

    at_epoch_s: float
    source: str


def read_login_manager(user: str, *, root: str = "") -> LoginManager | None:
    """Whether systemd-logind ends what a user leaves behind at logout; None where no systemd runs (PROC-24).

    Later files win, key by key. Source: logind.conf(5) and systemd.syntax(7), "KillUserProcesses, KillOnlyUsers,
    KillExcludeUsers" (default no; root is excluded by default).
    """
    if not os.path.isdir(f"{root}/run/systemd/system"):
        return None
    settings: dict[str, tuple[str, str]] = {}
    for path in _list_settings(root):
        for line in _read(path).splitlines():
            key, sign, value = line.strip().partition("=")
            if sign and not key.startswith(("#", ";")):
                settings[key.strip().lower()] = (value.strip(), path)
    kill, source = settings.get("killuserprocesses", ("no", "logind's default"))
    only = settings.get("killonlyusers", ("", ""))[0].split()
    spared = settings.get("killexcludeusers", ("root", ""))[0].split()
    kills = kill.lower() in ("1", "yes", "true", "on") and user not in spared and (not only or user in only)
    return LoginManager(kills, source)


def _list_settings(root: str) -> list[str]:
    """Main file first, then the drop-ins of all directories, sorted by name; the same name in /etc hides /usr/lib's."""
    mains = [f"{root}{place}/systemd/logind.conf" for place in ("/usr/lib", "/run", "/etc")]
    drop_ins: dict[str, str] = {}
    for place in ("/usr/lib", "/run", "/etc"):
        directory = f"{root}{place}/systemd/logind.conf.d"
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        drop_ins.update({name: f"{directory}/{name}" for name in names if name.endswith(".conf")})
    main = [path for path in mains if os.path.exists(path)][-1:]
    return main + [drop_ins[name] for name in sorted(drop_ins)]


def is_lingering(user: str, *, root: str = "") -> bool:
    """Whether the account's services outlive its sessions. Source: loginctl(1), enable-linger."""
    return os.path.exists(f"{root}/var/lib/systemd/linger/{user}")


def leaves_no_session(cgroup: str | None = None) -> bool:
    """Whether we are outside every login session, so that no logout ends us; True where that cannot be told."""
    text = _read("/proc/self/cgroup") if cgroup is None else cgroup
    return not any("session-" in line and ".scope" in line for line in text.splitlines())


def read_shutdown(*, root: str = "") -> SessionEnd | None:
    """A planned shutdown or restart; None when none is planned. Source: systemd-logind, shutdown/scheduled."""
    path = f"{root}/run/systemd/shutdown/scheduled"
    pairs = dict(line.partition("=")[::2] for line in _read(path).splitlines())
    microseconds = pairs.get("USEC", "")
    if not (microseconds.isascii() and microseconds.isdigit()):
        return None
    return SessionEnd(int(microseconds) / 1e6, f"planned {pairs.get('MODE') or 'shutdown'} ({path})")


def read_session_ends(environ: Mapping[str, str], *, root: str = "") -> tuple[SessionEnd, ...]:
    """Every known end of this session, soonest first: a planned shutdown, the scheduler's walltime (PRE-24).

    ``SLURM_JOB_END_TIME`` is epoch seconds (Source: sbatch(1), Slurm 20.11 and later).
    """
    ends = [end for end in (read_shutdown(root=root),) if end is not None]
    stated = environ.get("SLURM_JOB_END_TIME", "")
    if stated.isascii() and stated.isdigit():
        ends.append(SessionEnd(float(stated), "the end of the Slurm job (SLURM_JOB_END_TIME)"))
    return tuple(sorted(ends, key=lambda end: end.at_epoch_s))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
