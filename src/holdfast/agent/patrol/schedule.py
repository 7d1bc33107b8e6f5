"""Entries of cron and systemd timers that call holdfast, written with consent (MON-18).

Everything is shown as it will stand before anything is written (`ScheduledEntry.text`), what is written carries a mark
of its owner (the patrol, the queue), and removing takes away exactly that. The minute is not :00 or :30, when
everybody's jobs start at once (ETIQ-08); it is this account's own on this host, so that accounts spread out.

Sources: crontab(5) (``%`` is a newline unless escaped), systemd.timer(5), systemd.time(7), systemd.service(5).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from enum import Enum

from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.formats.own_bundle import build_own_command
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.record import record
from holdfast.model.units import format_duration
from holdfast.store.paths import make_state_directory, state_directory

from .scheduled import INSTALLED, LAST

BEGIN = "# holdfast patrol: begin (made by `holdfast patrol install`; `holdfast patrol uninstall` removes it)"
END = "# holdfast patrol: end"
UNIT = "holdfast-patrol"
LIMIT_S = 20.0
CARRIED = (
    "HOLDFAST_RUNS",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "HOLDFAST_LEASE_DIR",
    "HOLDFAST_RULES",
    "HOLDFAST_SENDMAIL",
)
"""Cron and systemd start with an empty environment; these say where the runs and our state are."""


class TimerKind(str, Enum):
    """What calls."""

    CRON = "cron"
    SYSTEMD = "systemd"


@record
class EntryOwner:
    """Whose an entry is, and how it is told from everybody else's.

    `begin` and `end` are the lines around it, `sign` words that only a line of its own has. `units` are the names of
    its unit files, the one to be enabled first; `starts`: enabling starts it too, and disabling ends it.
    """

    begin: str
    end: str
    sign: str
    units: tuple[str, ...]
    starts: bool


PATROL = EntryOwner(BEGIN, END, " patrol --since-last", (f"{UNIT}.timer", f"{UNIT}.service"), starts=True)


@record
class ScheduledEntry:
    """What would be written: for cron the lines, for systemd files by path."""

    clock: TimerKind
    every_s: float
    lines: str = ""
    files: tuple[tuple[str, str], ...] = ()
    owner: EntryOwner = PATROL

    @property
    def text(self) -> str:
        """Exactly what would be written, for people."""
        return self.lines or "\n".join(f"# {path}\n{content}" for path, content in self.files)


def build_entry(which: TimerKind, every_s: float, arguments: Sequence[str], *, seed: str) -> ScheduledEntry:
    """The entry that calls ``holdfast patrol`` each `every_s`; `seed` decides its minute.

    It looks at the runs of this box alone: a clock has neither an agent of ssh nor anybody to ask for a password.

    Raises:
        UsageError: there is no such interval: it must divide an hour, or a day in whole hours.
    """
    minutes, hours = _times(every_s, seed)
    words = build_own_command("patrol", "--since-last", "--here", *arguments)
    set_here = read_carried(CARRIED)
    refuse_newlines([*words, *set_here.values()])
    last = f"{state_directory()}/{LAST}"
    if which is TimerKind.CRON:
        line = write_line(words, set_here, last)
        return ScheduledEntry(which, every_s, f"{BEGIN}\n{_list(minutes)} {_list(hours) or '*'} * * * {line}\n{END}\n")
    when = f"{','.join(f'{hour:02d}' for hour in hours) or '*'}:{','.join(f'{minute:02d}' for minute in minutes)}"
    service = (
        f"{BEGIN}\n[Unit]\nDescription=One look at every holdfast run of this account\n\n[Service]\nType=oneshot\n"
        f"{write_service(words, set_here, last)}TimeoutStartSec=120\n"
    )
    timer = (
        f"{BEGIN}\n[Unit]\nDescription=Calls holdfast patrol\n\n[Timer]\nOnCalendar={when}\nAccuracySec=1min\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    where = unit_directory()
    return ScheduledEntry(
        which, every_s, files=((f"{where}/{UNIT}.service", service), (f"{where}/{UNIT}.timer", timer))
    )


def read_carried(names: Sequence[str]) -> dict[str, str]:
    """These variables as they are set here, for an entry; each is a path."""
    return {name: os.path.abspath(os.environ[name]) for name in names if os.environ.get(name)}


def write_line(words: Sequence[str], variables: Mapping[str, str], output: str) -> str:
    """A command for a line of cron's table. Source: crontab(5): ``%`` is a newline unless escaped."""
    prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
    return f"{prefix}{shlex.join(words)} > {shlex.quote(output)} 2>&1".replace("%", r"\%")


def write_service(words: Sequence[str], variables: Mapping[str, str], output: str) -> str:
    """The settings of a service that say what is run. Source: systemd.service(5), systemd.exec(5)."""
    settings = "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in variables.items())
    command = " ".join(_quote(word).replace("$", "$$") for word in words)
    where = output.replace("%", "%%")
    return f"{settings}ExecStart={command}\nStandardOutput=truncate:{where}\nStandardError=inherit\n"


def refuse_newlines(words: Sequence[str]) -> None:
    """Refuse what would end the entry in its middle.

    Raises:
        UsageError: a word holds a line break.
    """
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


def choose_timer_kind(*, hint: str = "") -> TimerKind:
    """What this box has: a running user manager, else cron. `hint` is what to do without either.

    Raises:
        UsageError: neither.
    """
    if shutil.which("systemctl") and _call(("systemctl", "--user", "show-environment"))[0] == 0:
        return TimerKind.SYSTEMD
    if shutil.which("crontab"):
        return TimerKind.CRON
    raise UsageError(
        "there is neither a systemd user manager nor a crontab command on this box",
        hint=hint or f"have whatever clock there is call `{name_own_command('patrol', '--since-last', '--here')}`",
    )


def name_own_command(*words: str) -> str:
    """This holdfast with these words, as it is called on this box: also where it is no command of the account."""
    return shlex.join(build_own_command(*words))


def install_entry(entry: ScheduledEntry) -> None:
    """Write the entry, in the place of an earlier one of the same owner.

    Raises:
        StorageError: the clock refused it, or a file cannot be written.
    """
    owner = entry.owner
    make_state_directory()
    if entry.clock is TimerKind.CRON:
        _write_table(_without_ours(_read_table(), owner) + entry.lines)
    else:
        os.makedirs(unit_directory(), mode=0o755, exist_ok=True)
        for path, content in entry.files:
            files.commit(path, content.encode("utf-8", "surrogateescape"), mode=0o644)
        now = ("--now",) if owner.starts else ()
        for words in (("daemon-reload",), ("enable", *now, owner.units[0])):
            _demand(("systemctl", "--user", *words))
    if owner is PATROL:
        record = {"clock": entry.clock, "every_s": entry.every_s, "at": clock.utc_now()}
        files.commit(f"{state_directory()}/{INSTALLED}", wire.to_bytes(record))


def find_installed(owner: EntryOwner = PATROL) -> tuple[str, ...]:
    """What of an owner's a clock has, in words: each entry's place."""
    found = []
    if shutil.which("crontab") and owner.begin in _read_table():
        found.append("the table of cron (crontab -l)")
    paths = (f"{unit_directory()}/{name}" for name in owner.units)
    return (*found, *(path for path in paths if os.path.lexists(path)))


def read_entries() -> str:
    """What cron and systemd have of this account's: the table, and the units of ours.

    Raises:
        StorageError: the table could not be read.
    """
    texts = [_read_table()] if shutil.which("crontab") else []
    directory = unit_directory()
    try:
        names = [name for name in os.listdir(directory) if name.startswith("holdfast-")]
    except OSError:
        names = []
    return "\n".join((*texts, *(files.read_text_or_none(f"{directory}/{name}") or "" for name in names)))


def remove_entries(owner: EntryOwner = PATROL) -> tuple[str, ...]:
    """Remove every entry of an owner; answers what was removed.

    Raises:
        StorageError: one could not be removed.
    """
    removed = find_installed(owner)
    if shutil.which("crontab"):
        table = _read_table()
        if owner.begin in table:
            _write_table(_without_ours(table, owner))
    units = [path for path in removed if path.startswith("/")]
    if units:
        now = ("--now",) if owner.starts else ()
        if shutil.which("systemctl"):
            _call(("systemctl", "--user", "disable", *now, owner.units[0]))
        for path in units:
            os.unlink(path)
        if shutil.which("systemctl"):
            _call(("systemctl", "--user", "daemon-reload"))
    if owner is PATROL:
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


def _without_ours(table: str, owner: EntryOwner = PATROL) -> str:
    """Everything but what stands between our marks; without the second mark, only what is surely ours goes."""
    lines, kept = table.splitlines(), []
    while lines:
        line = lines.pop(0)
        if line != owner.begin:
            kept.append(line)
        elif owner.end in lines:
            lines = lines[lines.index(owner.end) + 1 :]
        elif lines and owner.sign in lines[0]:
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
