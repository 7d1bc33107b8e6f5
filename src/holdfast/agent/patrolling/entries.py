"""What calls the patrol: a line of cron's table or a systemd timer of the user, made only with consent (MON-18).

Everything is shown as it will stand before anything is written (`Entry.text`), what is written carries a mark of ours,
and removing takes away exactly that. The minute is not :00 or :30, when everybody's jobs start at once (ETIQ-08); it is
this account's own on this host, so that accounts spread out.

Sources: crontab(5) (``%`` is a newline unless escaped), systemd.timer(5), systemd.time(7), systemd.service(5).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...host import clock, files
from ...model import wire
from ...model.errors import StorageError, UsageError
from ...model.units import format_duration
from ...store.index import state_directory
from .armed import INSTALLED, LAST

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGIN = "# holdfast patrol: begin (made by `holdfast patrol install`; `holdfast patrol uninstall` removes it)"
END = "# holdfast patrol: end"
UNIT = "holdfast-patrol"
LIMIT_S = 20.0
CARRIED = ("HOLDFAST_RUNS", "XDG_STATE_HOME", "HOLDFAST_LEASE_DIR", "HOLDFAST_RULES")
"""Cron and systemd start with an empty environment; these say where the runs and our state are."""


class Clock(str, Enum):
    """What calls the patrol."""

    CRON = "cron"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class Entry:
    """What would be written: for cron the lines, for systemd two files by path."""

    clock: Clock
    every_s: float
    lines: str = ""
    files: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Exactly what would be written, for people."""
        return self.lines or "\n".join(f"# {path}\n{content}" for path, content in self.files)


def build(which: Clock, every_s: float, arguments: Sequence[str], *, seed: str) -> Entry:
    """The entry that calls ``holdfast patrol`` each `every_s`; `seed` decides its minute.

    Raises:
        UsageError: there is no such interval: it must divide an hour, or a day in whole hours.
    """
    minutes, hours = _times(every_s, seed)
    words = [sys.executable, "-m", "holdfast", "patrol", "--since-last", *arguments]
    set_here = {name: os.path.abspath(os.environ[name]) for name in CARRIED if os.environ.get(name)}
    _refuse_newlines([*words, *set_here.values()])
    last = f"{state_directory()}/{LAST}"
    if which is Clock.CRON:
        prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in set_here.items())
        line = f"{prefix}{shlex.join(words)} > {shlex.quote(last)} 2>&1".replace("%", r"\%")
        return Entry(which, every_s, f"{BEGIN}\n{_list(minutes)} {_list(hours) or '*'} * * * {line}\n{END}\n")
    when = f"{','.join(f'{hour:02d}' for hour in hours) or '*'}:{','.join(f'{minute:02d}' for minute in minutes)}"
    settings = "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in set_here.items())
    command = " ".join(_quote(word).replace("$", "$$") for word in words)
    service = (
        f"{BEGIN}\n[Unit]\nDescription=One look at every holdfast run of this account\n\n[Service]\nType=oneshot\n"
        f"{settings}ExecStart={command}\nStandardOutput=truncate:{last.replace('%', '%%')}\nStandardError=inherit\n"
        "TimeoutStartSec=120\n"
    )
    timer = (
        f"{BEGIN}\n[Unit]\nDescription=Calls holdfast patrol\n\n[Timer]\nOnCalendar={when}\nAccuracySec=1min\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    where = unit_directory()
    return Entry(which, every_s, files=((f"{where}/{UNIT}.service", service), (f"{where}/{UNIT}.timer", timer)))


def _refuse_newlines(words: Sequence[str]) -> None:
    if any("\n" in word or "\r" in word for word in words):
        raise UsageError("a path of this entry holds a line break, which no table of a clock can carry")


def _quote(text: str) -> str:
    """One word of a unit file. Source: systemd.syntax(7), quoting; systemd.unit(5): ``%`` begins a specifier."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _times(every_s: float, seed: str) -> tuple[list[int], list[int]]:
    """The minutes of an hour and the hours of a day (empty: every one) at which to call."""
    whole = round(every_s / 60)
    step = min(whole, 60)
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
    if whole < 2 or abs(every_s - whole * 60) > 1e-6 or 60 % step or (whole > 60 and (whole % 60 or 1440 % whole)):
        raise UsageError(
            f"--every {format_duration(every_s)}: an entry cannot call at that interval",
            hint="use 5m, 10m, 15m, 20m, 30m, 1h, 2h, 3h, 4h, 6h, 12h or 24h",
        )
    allowed = [at for at in range(step) if all(minute % 30 for minute in range(at, 60, step))]
    away = [at for at in allowed if all(3 <= minute % 30 <= 27 for minute in range(at, 60, step))]
    choices = away or allowed or [0]
    minutes = list(range(choices[number % len(choices)], 60, step))
    return minutes, list(range(number % (whole // 60), 24, whole // 60)) if whole > 60 else []


def unit_directory() -> str:
    """Where a user's own units are. Source: systemd.unit(5), ``$XDG_CONFIG_HOME/systemd/user``."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return f"{base}/systemd/user"


def choose() -> Clock:
    """What this box has: a running user manager, else cron.

    Raises:
        UsageError: neither.
    """
    if shutil.which("systemctl") and _call(("systemctl", "--user", "show-environment"))[0] == 0:
        return Clock.SYSTEMD
    if shutil.which("crontab"):
        return Clock.CRON
    raise UsageError(
        "there is neither a systemd user manager nor a crontab command on this box",
        hint="call `holdfast patrol --since-last` from whatever clock there is, or use `holdfast sentinel`",
    )


def install(entry: Entry) -> None:
    """Write the entry, in the place of an earlier one of ours, and record it.

    Raises:
        StorageError: the clock refused it, or a file cannot be written.
    """
    os.makedirs(state_directory(), mode=0o700, exist_ok=True)
    if entry.clock is Clock.CRON:
        _write_table(_without_ours(_read_table()) + entry.lines)
    else:
        os.makedirs(unit_directory(), mode=0o755, exist_ok=True)
        for path, content in entry.files:
            files.commit(path, content.encode("utf-8", "surrogateescape"), mode=0o644)
        for words in (("daemon-reload",), ("enable", "--now", f"{UNIT}.timer")):
            _demand(("systemctl", "--user", *words))
    record = {"clock": entry.clock, "every_s": entry.every_s, "at": clock.utc_now()}
    files.commit(f"{state_directory()}/{INSTALLED}", wire.to_bytes(record))


def find_installed() -> tuple[str, ...]:
    """What of ours a clock has, in words: each entry's place."""
    found = []
    if shutil.which("crontab") and BEGIN in _read_table():
        found.append("the table of cron (crontab -l)")
    paths = (f"{unit_directory()}/{UNIT}.timer", f"{unit_directory()}/{UNIT}.service")
    return (*found, *(path for path in paths if os.path.lexists(path)))


def uninstall() -> tuple[str, ...]:
    """Remove every entry of ours; answers what was removed.

    Raises:
        StorageError: one could not be removed.
    """
    removed = find_installed()
    if shutil.which("crontab"):
        table = _read_table()
        if BEGIN in table:
            _write_table(_without_ours(table))
    units = [path for path in removed if path.startswith("/")]
    if units:
        if shutil.which("systemctl"):
            _call(("systemctl", "--user", "disable", "--now", f"{UNIT}.timer"))
        for path in units:
            os.unlink(path)
        if shutil.which("systemctl"):
            _call(("systemctl", "--user", "daemon-reload"))
    files.remove_quietly(f"{state_directory()}/{INSTALLED}")
    return removed


def _read_table() -> str:
    """This account's table; empty when it has none (crontab then ends with 1 and says so).

    Raises:
        StorageError: it could not be read, which is not the same as empty: writing would lose it.
    """
    code, out, problem = _call(("crontab", "-l"))
    if code == 0:
        return out
    if "no crontab" in problem.lower():
        return ""
    raise StorageError(f"crontab -l ended with {code}: {problem.strip()[:200]}", hint="see whether cron may be used")


def _without_ours(table: str) -> str:
    """Everything but what stands between our marks; without the second mark, only what is surely ours goes."""
    lines, kept = table.splitlines(), []
    while lines:
        line = lines.pop(0)
        if line != BEGIN:
            kept.append(line)
        elif END in lines:
            lines = lines[lines.index(END) + 1 :]
        elif lines and " patrol --since-last" in lines[0]:
            lines.pop(0)
    return "".join(f"{line}\n" for line in kept)


def _write_table(table: str) -> None:
    words = ("crontab", "-r") if not table else ("crontab", "-")
    _demand(words, table)


def _demand(words: tuple[str, ...], stdin: str = "") -> None:
    code, _, problem = _call(words, stdin)
    if code != 0:
        raise StorageError(
            f"`{shlex.join(words)}` ended with {code}: {problem.strip()[:200]}", hint="nothing else was changed"
        )


def _call(words: tuple[str, ...], stdin: str = "") -> tuple[int, str, str]:
    """Run a clock's own command within bounds: exit code, output, errors."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr
