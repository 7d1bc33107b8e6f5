"""A real sshd on loopback, with accounts of its own: the box of all tests that go through SSH.

It lives in a mount namespace of its own, so nothing of this machine is changed and loopback hides less: `/etc/passwd`,
`/etc/group`, `/etc/shadow`, `/etc/subuid` and `/etc/subgid` are private copies, `/run`, `/dev/shm`, `/root` and the
repository are empty there. The accounts have no rights, another time zone, umask 077 and the C locale.

    def test_it(sshd, ssh_desk):                   # ssh_desk: HOLDFAST_SSH is set, and no master stays behind
        place = Place("gpu1", host=sshd.alias("box"))

`sshd` is one for each worker; who changes it (`new_host_key`, `stop`) makes one of their own with `Sshd.started(...)`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import find_free_port
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[1]
SSHD = "/usr/sbin/sshd"
SFTP = "/usr/lib/openssh/sftp-server"
TIME_ZONE = "Asia/Kathmandu"
SECOND_FACTOR = "correct horse"
# Of `SECOND_FACTOR`: openssl passwd -5.
SECOND_FACTOR_HASH = "$5$holdfastholdfast$zTJLIZfqy8iVBCAniRLavQjr.64tnXPpEqkovx7cNO1"

ACCOUNTS = {
    "box": "/bin/dash",
    "other": "/bin/dash",
    "chatty": "/bin/bash",  # prints at login, on both streams
    "loud": "/bin/bash",  # prints more than anybody skips
    "cshell": "/usr/bin/tcsh",
    "bsdcsh": "/usr/bin/bsd-csh",
    "fisher": "/usr/bin/fish",
    "zshell": "/usr/bin/zsh",
    "nosftp": "/bin/dash",  # its file transfer does not start
    "nologin": "/usr/sbin/nologin",
    "falsy": "/bin/false",
    "menu": None,  # a login shell that is no shell: see `_make_homes`
    "passwordonly": "/bin/dash",
    "twofactor": "/bin/dash",  # a key, and then a password
}
"""Accounts and their login shells."""

SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
PidFile {root}/sshd.pid
AuthorizedKeysFile {root}/authorized_keys
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
StrictModes no
PrintMotd no
PrintLastLog no
MaxStartups 200:30:400
LogLevel VERBOSE
SetEnv TZ={time_zone} LANG=C LC_ALL=C
Subsystem sftp {root}/sftp
{options}
Match User passwordonly
    PasswordAuthentication yes
    AuthenticationMethods password
Match User twofactor
    PasswordAuthentication yes
    AuthenticationMethods publickey,password
"""

# $0 is the directory of the fixture; what follows are directories that are empty there.
IN_NAMESPACE = """\
set -e
umask 077
mount --make-rprivate /
for name in passwd group shadow subuid subgid; do
    if [ -e "/etc/$name" ]; then mount --bind "$0/etc/$name" "/etc/$name"; fi
done
mount -t tmpfs -o mode=0755 none /run
mkdir -m 0755 /run/sshd
mkdir -m 1777 /run/lock
mount -t tmpfs -o mode=1777 none /dev/shm
if [ -d /etc/holdfast ]; then mount -t tmpfs -o mode=0755 none /etc/holdfast; fi
if [ -d /var/lib/holdfast ]; then mount -t tmpfs -o mode=1777 none /var/lib/holdfast; fi
root=$0
for hidden in "$@"; do mount -t tmpfs -o mode=0700 none "$hidden"; done
cd /
exec /usr/sbin/sshd -f "$root/sshd_config" -E "$root/sshd.log"
"""


class Sshd:
    """One sshd with its accounts, its client key, and the client's configuration.

    `config` is the ssh_config with all aliases, `program` what HOLDFAST_SSH is set to, `log` sshd's own log, `port`
    where it listens. `users` maps each account to its number.
    """

    def __init__(self, *, options: str = "") -> None:
        """Make its files; `start` starts it. `options` are more lines of sshd_config."""
        self.root = Path(tempfile.mkdtemp(prefix="hf-sshd-", dir="/tmp"))
        self.root.chmod(0o711)
        self.config = self.root / "ssh_config"
        self.program = self.root / "ssh"
        self.log = self.root / "sshd.log"
        self.known_hosts = self.root / "known_hosts"
        self.port = 0
        self._options = options
        self._aliases: dict[str, str] = {}
        self._namespace = ""
        self._log_start = 0
        # Numbers that no other sshd of the tests has: its processes are found by them.
        first = 200_000 + int.from_bytes(os.urandom(3), "big") * 16
        self.users = {name: first + index for index, name in enumerate(ACCOUNTS)}
        for name in ("id", "host_key"):
            self._make_key(name)
        shutil.copy(self.root / "id.pub", self.root / "authorized_keys")
        self._make_accounts()
        self._make_homes()
        self._write("ssh", f'#!/bin/sh\nexec /usr/bin/ssh -F {self.config} "$@"\n', 0o755)
        self._write("sftp", f'#!/bin/sh\n[ "$(id -un)" != nosftp ] || exit 1\nexec {SFTP}\n', 0o755)
        self._write("authorized_keys", (self.root / "authorized_keys").read_text(), 0o644)

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, options: str = "") -> Iterator[Sshd]:
        """One that runs until the end of the block."""
        made = cls(options=options)
        try:
            made.start()
            yield made
        finally:
            made.stop()
            shutil.rmtree(made.root)

    def alias(self, user: str, *, name: str = "", via: int | None = None, **settings: object) -> str:
        """A Host of the client's configuration for an account; `via` another port, as of a proxy; more settings."""
        name = name or (f"{user}-{len(self._aliases)}" if via or settings else user)
        wanted: dict[str, object] = {
            "HostName": "127.0.0.1",
            "Port": via or self.port,
            "User": user,
            "IdentityFile": self.root / "id",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            **settings,
        }
        while name in self._aliases and name != user:
            name += "x"
        self._aliases[name] = f"Host {name}\n" + "".join(f"  {key} {value}\n" for key, value in wanted.items())
        self._write_aliases()
        if via:
            self._know(via)
        return name

    def forget(self, alias: str) -> None:
        """Take an alias out of the client's configuration, so that no other test meets its settings."""
        if alias not in ACCOUNTS:
            self._aliases.pop(alias, None)
            self._write_aliases()

    def home(self, user: str) -> Path:
        """The home directory of an account."""
        return self.root / "home" / user

    def start(self) -> None:
        """Start it on its port, or on a free one."""
        for _ in range(10):
            self.port = self.port or find_free_port()
            self._write("sshd_config", self._format_config())
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            (self.root / "sshd.pid").unlink(missing_ok=True)
            hidden = [str(path) for path in (REPOSITORY, Path("/root")) if path.is_dir()]
            done = subprocess.run(
                ["unshare", "-m", "sh", "-c", IN_NAMESPACE, self.root, *hidden],
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd="/",
                check=False,
            )
            if done.returncode == 0 and self._is_up():
                break
            if done.stderr:
                raise RuntimeError(f"sshd was not started: {done.stderr}")
            if not self._namespace:  # else clients know the port, and the listener before may be on its way out
                self.port = 0
        else:
            raise RuntimeError(f"sshd does not listen: {self.log.read_text()}")
        self._namespace = os.readlink(f"/proc/{self.pid}/ns/mnt")
        self._know(self.port)

    @property
    def pid(self) -> int:
        """The listening process."""
        return int((self.root / "sshd.pid").read_text())

    def stop(self) -> None:
        """End it and every process of its accounts."""
        wait_until(self._kill_all, what="the end of all processes of the sshd")

    def restart(self) -> None:
        """End everything there, as a reboot would, and start it on the same port."""
        self.stop()
        self.start()

    def cut(self) -> None:
        """End all connections, but neither the listener nor what runs detached."""
        for pid in self.processes():
            if pid != self.pid and b"sshd:" in _read(f"/proc/{pid}/cmdline"):
                _kill(pid)

    def new_host_key(self) -> None:
        """As after a reinstallation: another host key, which the client does not know."""
        self._make_key("host_key")
        self.restart_listener()

    def restart_listener(self) -> None:
        """Only the listener begins anew: what runs there goes on."""
        old = self.pid
        _kill(old)
        wait_until(lambda: not os.path.exists(f"/proc/{old}"), what="the end of the listener")
        kept = self.known_hosts.read_text()
        self.start()
        self.known_hosts.write_text(kept)

    def processes(self, user: str | None = None) -> dict[int, str]:
        """The processes there with their command lines; of one account or all."""
        numbers = {self.users[user]} if user else set(self.users.values())
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    there = os.readlink(f"/proc/{name}/ns/mnt") == self._namespace
                    number = os.stat(f"/proc/{name}").st_uid
                    if number in numbers or (there and not user):
                        found[int(name)] = _read(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode(errors="replace")
        return found

    def calls(self, user: str) -> list[list[str]]:
        """The words of each command of a desk that runs there now; an ssh that connects is none yet."""
        found = []
        for line in self.processes(user).values():
            program, _, word = line.rstrip().rpartition(" ")
            if program.endswith("/hf.py"):
                found.append(json.loads(base64.b64decode(word))["argv"])
        return found

    def fingerprint(self) -> str:
        """Of its present host key, as ssh shows it."""
        done = subprocess.run(
            ["ssh-keygen", "-l", "-f", self.root / "host_key.pub"], capture_output=True, text=True, check=True
        )
        return done.stdout.split()[1]

    def _write_aliases(self) -> None:
        """In one step: commands of the desk may be reading it."""
        temporary = self.root / "ssh_config.new"
        temporary.write_text("\n".join(self._aliases.values()))
        temporary.rename(self.config)

    def _know(self, port: int) -> None:
        """Have the client know the host key at a port."""
        key = " ".join((self.root / "host_key.pub").read_text().split()[:2])
        old = self.known_hosts.read_text().splitlines() if self.known_hosts.exists() else []
        kept = [line for line in old if not line.startswith(f"[127.0.0.1]:{port} ")]
        self.known_hosts.write_text("\n".join([*kept, f"[127.0.0.1]:{port} {key}", ""]))

    def _kill_all(self) -> bool:
        found = self.processes()
        for pid in found:
            _kill(pid)
        return not found

    def _is_up(self) -> bool:
        """Whether it listens; False when its port was taken meanwhile."""

        def looked() -> str:
            if re.search(
                rb"Cannot bind|fatal:", self.log.read_bytes()[self._log_start :] if self.log.exists() else b""
            ):
                return "no"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                # Made empty first, and written then.
                return "yes" if (self.root / "sshd.pid").read_text().strip() else ""
            return ""

        return wait_until(looked, what="the sshd") == "yes"

    def _format_config(self) -> str:
        return SSHD_CONFIG.format(port=self.port, root=self.root, time_zone=TIME_ZONE, options=self._options)

    def _make_key(self, name: str) -> None:
        for path in (self.root / name, self.root / f"{name}.pub"):
            path.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "the tests", "-f", str(self.root / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def _make_accounts(self) -> None:
        passwd, group, shadow = (Path(f"/etc/{name}").read_text() for name in ("passwd", "group", "shadow"))
        for name, number in self.users.items():
            shell = ACCOUNTS[name] or self.root / "menu"
            passwd += f"{name}:x:{number}:{number}:{name} of the tests:{self.home(name)}:{shell}\n"
            group += f"{name}:x:{number}:\n"
            password = SECOND_FACTOR_HASH if name in {"passwordonly", "twofactor"} else "*"
            shadow += f"{name}:{password}:19000:0:99999:7:::\n"
        # What an account needs for containers without root: 65,536 numbers that nobody has.
        below = 2**31 + self.users["box"] % 0x7FFF * 0x1_0000
        subordinate = f"box:{below}:65536\n"
        (self.root / "etc").mkdir()
        for name, text, mode in (
            *(("passwd", passwd, 0o644), ("group", group, 0o644), ("shadow", shadow, 0o600)),
            *(("subuid", subordinate, 0o644), ("subgid", subordinate, 0o644)),
        ):
            self._write(f"etc/{name}", text, mode)

    def _make_homes(self) -> None:
        (self.root / "home").mkdir(mode=0o711)
        for name in ACCOUNTS:
            self.home(name).mkdir(mode=0o700)
        says = "echo 'Welcome to the box!'; echo 'no newline here' | tr -d '\\n'; echo 'Warning: quota' >&2\n"
        (self.home("chatty") / ".bashrc").write_text(says)
        (self.home("loud") / ".bashrc").write_text("head -c 200000 /dev/zero | tr '\\0' x\n")
        (self.home("cshell") / ".cshrc").write_text("echo 'csh says hello!'\n")
        fish = self.home("fisher") / ".config" / "fish"
        fish.mkdir(parents=True)
        (fish / "config.fish").write_text("echo 'fish says hello'\n")
        self._write("menu", "#!/bin/sh\necho '1) pay  2) leave'\nexit 3\n", 0o755)
        for name, number in self.users.items():
            for path in (self.home(name), *self.home(name).rglob("*")):
                os.chown(path, number, number)

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.root / name
        path.write_text(text)
        path.chmod(mode)


def end_masters() -> None:
    """End the shared connections that a desk of this test has opened."""
    for variable, name in (
        ("TMPDIR", f"holdfast-ssh-{os.getuid()}"),
        ("XDG_RUNTIME_DIR", "holdfast"),
        ("HOME", ".ssh"),
    ):
        directory = Path(os.environ.get(variable, "/nonexistent")) / name
        for path in directory.glob("*") if directory.is_dir() else ():
            if path.is_socket():
                command = ["/usr/bin/ssh", "-F", "/dev/null", "-o", f"ControlPath={path}", "-O", "exit", "any"]
                subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT_S)


def why_no_sshd() -> str:
    """Why there can be no private sshd here, empty where there can: accounts and a mount namespace need root."""
    if os.geteuid() != 0:
        return "a private sshd with accounts of its own needs root"
    if not os.path.exists(SSHD):
        return "openssh-server is not installed"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        return "no mount namespace of our own here (unshare -m)"
    return ""


def skip_without_rights() -> None:
    """Skip the test where there can be no private sshd."""
    if reason := why_no_sshd():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """The box of this worker's tests; it must be left as it was found."""
    skip_without_rights()
    with Sshd.started() as made:
        for user in ACCOUNTS:
            made.alias(user)
        yield made


@pytest.fixture
def ssh_desk(sshd: Sshd, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A desk whose ssh knows the box: HOLDFAST_SSH is set. Shared connections are ended afterwards."""
    monkeypatch.setenv("HOLDFAST_SSH", str(sshd.program))
    yield sshd
    end_masters()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
