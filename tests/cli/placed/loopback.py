"""One account of a real sshd, asked in two ways: by whoever types on the box, and by a desk through ssh.

Both ways reach the same files of the same account. On the box the command line is that of the bundle which the desk
brought, in the environment that sshd gives; at the desk it is the program under test.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.runs_root import bundles_dir
from tests.cli.conftest import ENTRY, Ended
from tests.desk.route.loop import add_place
from tests.sshd import TIME_ZONE
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.sshd import Sshd

PLACE = "gpu1"
ACCOUNT = "box"
CARDS = "HOLDFAST_SIMULATED_GPUS=2x24GiB"

AGES = (
    # When: two looks at the same thing are not at the same time, and a pair of runs did not begin at the same time.
    (re.compile(r"\d{8}-\d{6}-([A-Za-z0-9._-]+?)-[0-9a-f]{4}(?![0-9a-f])"), r"ID-\1"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\b\d\d:\d\d:\d\d(\.\d+)?Z?"), "T"),
    (re.compile(r"\(processes \d+\)"), "(processes N)"),
    (re.compile(r"\b(\d+h)?\d+m\d+s|\b\d+(\.\d+)? (ms|s|min|h|days?)\b|\bnow\b"), "AGE"),
    (re.compile(r'("\w*(_s|time|seconds|hours|rss_bytes|_epoch|ticks)"): [\d.e-]+'), r"\1: AGE"),
    # Which processes: each command is one of its own, and so is each supervisor.
    (re.compile(r'(\bpids?"?:? )\d+|("(?:pid|sid|pgid|inner_pid|start_ticks|version|seq)"): \d+'), r"\1\2N"),
    (re.compile(r", version \d+|((?:started|ended) between the looks: )[\d, ]+"), r"\1N"),
    # Only where people look at standard error, which a desk does not say.
    (re.compile(r"^holdfast: (asking|measuring) .*\n", re.MULTILINE), ""),
    # Whether the last worker, which has nothing to do any more, has left yet.
    (re.compile(r"^holdfast: a worker was started\n", re.MULTILINE), ""),
    (re.compile(r'\[\s*"a worker was started"\s*\]'), "[]"),
    # How long ago the last one was started.
    (
        re.compile(
            r"a worker is just being started|no worker is there to go on; `holdfast queue resume[^`]*` starts one"
        ),
        "NO WORKER",
    ),
    # Numbers that each thing gets for itself.
    (re.compile(r'"id": ("[0-9a-f]{8}"|\d+)|\(id \d+\)|\br[0-9a-f]{8}\b'), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d|began \d+|job process pid.*|^ +job hash .*", re.MULTILINE), "T"),
    (re.compile(r'("GPU-[0-9a-f-]+"): [\d.]+'), r"\1: HOURS"),
    # How often the cards were looked at in the time of one look.
    (re.compile(r'("readings": )\d+'), r"\1N"),
    # What the rest of the machine does meanwhile.
    (re.compile(r"others on this host used .*|\d+(\.\d+)? [KMGT]i?B of \d+"), "USE"),
)


def alike(text: str) -> str:
    """What two looks at the same thing have in common; columns are as wide as their ages."""
    for pattern, instead in AGES:
        text = pattern.sub(instead, text)
    return "\n".join(re.sub(r" +", " ", line).rstrip() for line in text.splitlines())


class Loopback:
    """The box and its desk; `add` makes it a place of the present test."""

    def __init__(self, sshd: Sshd) -> None:
        """The account gets two simulated cards, whichever way it is asked."""
        self.sshd = sshd
        self.home = sshd.home(ACCOUNT)
        self.number = sshd.users[ACCOUNT]
        self.runs = self.home / ".local/share/holdfast/runs"
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o755)
        (ssh / "environment").write_text(f"{CARDS}\n")
        self._program = ""

    def add(self) -> None:
        """A place of this desk, which has the bundle from then on."""
        add_place(PLACE, root=str(self.runs), host=self.sshd.alias(ACCOUNT))
        if not self._program:
            done = self.there("place", "probe", PLACE)
            assert done.code == 0, done
            (self._program,) = map(str, Path(bundles_dir(str(self.runs), self.number)).glob("[0-9a-f]*/hf.py"))

    def here(self, *words: str, columns: int | None = None) -> Ended:
        """Type ``holdfast WORDS`` on the box; with `columns` on a terminal that is so wide."""
        return _end([*self._enter(), *self._python(), *words], columns=columns)

    def there(self, *words: str, columns: int | None = None) -> Ended:
        """Type ``holdfast WORDS`` at the desk."""
        return _end([*ENTRY, *words], columns=columns)

    def type_on_box(self, script: str) -> Ended:
        """Any lines of sh there, in which ``holdfast`` is the program."""
        program = f'holdfast() {{ {shlex.join(self._python())} "$@"; }}\n{script}'
        return _end([*self._enter(), "sh", "-c", program])

    def give(self, path: Path) -> None:
        """Make what a test put there the account's own."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.number, self.number, follow_symlinks=False)

    def _python(self) -> list[str]:
        return ["python3", "-X", "utf8", "-I", "-S", self._program, "--"]

    def _enter(self) -> list[str]:
        """Become the account, as sshd does: source sshd(8), LOGIN PROCESS and ENVIRONMENT."""
        given = (
            *(f"HOME={self.home}", f"USER={ACCOUNT}", f"LOGNAME={ACCOUNT}", "SHELL=/bin/dash", f"TZ={TIME_ZONE}"),
            *("PATH=/usr/local/bin:/usr/bin:/bin:/usr/games", "LANG=C", "LC_ALL=C", "TERM=dumb"),
            f"SSH_CONNECTION=127.0.0.1 50000 127.0.0.1 {self.sshd.port}",
        )
        return [
            *("nsenter", "-t", str(self.sshd.pid), "-m", "setpriv", f"--reuid={self.number}", f"--regid={self.number}"),
            *("--clear-groups", "--inh-caps=-all", "env", "-i", *given, CARDS),
            *("sh", "-c", 'umask 077; cd; exec "$@"', "sh"),
        ]


def end_pair(text: str, names: Iterable[str]) -> str:
    """One name for the two members of each pair: ``act-1`` on the box and ``act-2`` at the desk."""
    for name in names:
        text = re.sub(rf"\b{name}-[12]\b", name, text)
    return text


def _end(command: Sequence[str], *, columns: int | None = None) -> Ended:
    if columns is not None:
        return _end_on_terminal(command, columns)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert "Traceback (most recent call last)" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def _end_on_terminal(command: Sequence[str], columns: int) -> Ended:
    """Both streams on one terminal of that width, with colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = [word if word != "TERM=dumb" else "TERM=xterm-256color" for word in command]
        begin = ["sh", "-c", f'stty cols {columns} rows 40 -opost; exec "$@"', "sh", *words]
        # Not the environment of libc: readline, which pytest has loaded, puts COLUMNS into it.
        os.execvpe("sh", begin, {**os.environ, "TERM": "xterm-256color"})
    said = b""
    with contextlib.suppress(OSError):  # EIO: the last writer has closed it
        while data := os.read(terminal, 65536):
            said += data
    os.close(terminal)
    return Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode(), "")
