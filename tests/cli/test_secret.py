"""``holdfast secret`` and jobs that name one: a canary that is found nowhere but in its file and in the job."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import NotPermitted, StorageError
from holdfast.transfer.bundle.bootstrap import build_word
from tests.canary import Canary
from tests.cli.conftest import ENTRY
from tests.desk.orders.ordering import PLACE, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = [pytest.mark.cli, pytest.mark.timeout(300)]

CANARY = "canary-5d2e91b7"
FORMS = Canary(CANARY)
DIGEST = hashlib.sha256(CANARY.encode()).hexdigest()
JOB = (
    "import hashlib, os, time; value = os.environ['HF_TOKEN'].encode()\n"
    "print(hashlib.sha256(value).hexdigest()); time.sleep(1)\n"
)


class Watch(threading.Thread):
    """Looks at the command lines and environments of all processes again and again; notes who has the canary."""

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self.looks = 0
        self.lines: list[str] = []
        self.environments: set[bytes] = set()

    def run(self) -> None:
        while not self._over.is_set():
            self.looks += 1
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    line = Path(f"/proc/{name}/cmdline").read_bytes()
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if FORMS.is_in(line):
                    self.lines.append(line.decode(errors="replace"))
                if CANARY.encode() in environ:
                    self.environments.add(environ)
            self._over.wait(0.005)

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch until the end of the block."""
    watch = Watch()
    watch.start()
    try:
        yield watch
    finally:
        watch.end()


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_a_canary_among_the_words_that_are_sent_to_a_place_is_found(before: str) -> None:
    for argv in ([before, CANARY, "x"], ["restart", f"--env={before}{CANARY}"]):
        assert FORMS.is_in(build_word(argv, {}))
    assert not FORMS.is_in(build_word([before, CANARY[1:]], {}))


@pytest.fixture
def desk(ssh_desk: Sshd, tmp_path: Path) -> Iterator[Desk]:
    """A desk whose place is an account behind a real sshd."""
    root = ssh_desk.home("box") / "runs"
    made = Desk(tmp_path, str(root), host=ssh_desk.alias("box"))
    yield made
    made.clear()
    for name in (".netrc", ".config/holdfast/secrets/HF_TOKEN"):
        (ssh_desk.home("box") / name).unlink(missing_ok=True)


def find_canary(*tops: Path) -> list[str]:
    """Files below `tops` with the canary in them, in any form."""
    found = []
    for top in tops:
        for path in top.rglob("*"):
            if path.is_file() and not path.is_symlink():
                # What follows a push may still be at work there: a file of the moment is gone again.
                with suppress(FileNotFoundError):
                    if FORMS.is_in(path.read_bytes()):
                        found.append(str(path))
    return found


@pytest.mark.slow
@pytest.mark.requirement("XPORT-11")
@pytest.mark.gotcha("U34")
@pytest.mark.requirement("B-30")
def test_XPORT_11_a_secret_is_in_its_file_and_in_the_job_and_nowhere_else(
    desk: Desk, ssh_desk: Sshd, tmp_path: Path
) -> None:
    home, traced = ssh_desk.home("box"), tmp_path / "trace"
    (desk.tree / "train.py").write_text(JOB)
    (desk.tree / "job.yaml").write_text("command: [python3, train.py]\nsecrets: [HF_TOKEN]\n")
    refused = desk.run("job.yaml")
    assert (refused.returncode, desk.list_runs()) == (78, set())
    assert f"holdfast secret push {PLACE} HF_TOKEN" in refused.stderr
    with watching() as watch:
        trace = ("strace", "-f", "-qq", "-e", "trace=execve", "-s", "4096", "-v", "-o", str(traced))
        pushed = subprocess.run(
            [*trace, *ENTRY, "secret", "push", PLACE, "HF_TOKEN"],
            input=f"{CANARY}\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (pushed.returncode, pushed.stdout) == (0, ""), pushed.stderr
        done = desk.run("job.yaml")
    assert (done.returncode, done.stdout) == (0, f"{DIGEST}\n"), done.stderr
    text = traced.read_text()
    assert "execve(" in text
    for said in (text, pushed.stderr, refused.stderr, done.stderr, *watch.lines):
        assert not FORMS.is_in(said)
    assert watch.looks > 10
    # The job has it, and no process that is not the job's.
    assert watch.environments
    assert all(b"HOLDFAST_HEARTBEAT=" in environ for environ in watch.environments)
    kept = home / ".config/holdfast/secrets/HF_TOKEN"
    assert oct(kept.stat().st_mode & 0o7777) == "0o600"
    desk_side = [Path(os.environ[name]) for name in os.environ if name.startswith("XDG_")]
    # Everything of both sides: runs with their records, journal, registry, facts, logs; and where crashes are written.
    assert find_canary(home, tmp_path, Path(os.environ["TMPDIR"]), ssh_desk.root / "sshd.log", *desk_side) == [
        str(kept)
    ]
    assert CANARY not in ssh_desk.log.read_text()


@pytest.mark.slow
@pytest.mark.requirement("B-27")
def test_XPORT_12_one_machine_of_the_netrc_goes_and_the_others_stay(
    desk: Desk, ssh_desk: Sshd, holdfast: Command
) -> None:
    assert desk.list_runs() == set()
    there = ssh_desk.home("box") / ".netrc"
    there.write_text("machine old.org login me password kept\n")
    os.chown(there, ssh_desk.users["box"], ssh_desk.users["box"])
    here = Path.home() / ".netrc"
    here.parent.mkdir(exist_ok=True)
    here.write_text(f"machine a.org login me password {CANARY}\nmachine b.org login you password two\n")
    done = holdfast("secret", "push", PLACE, "b.org", "--netrc")
    assert done.code == 0, done.err
    assert there.read_text() == ("machine old.org login me password kept\nmachine b.org\n  login you\n  password two\n")
    assert oct(there.stat().st_mode & 0o7777) == "0o600"
    assert holdfast("secret", "push", PLACE, "c.org", "--netrc").code == 66
    here.write_text(f"machine a.org login me {CANARY}\n")
    done = holdfast("secret", "push", PLACE, "a.org", "--netrc")
    assert (done.code, CANARY in done.err, "line 1" in done.err) == (64, False, True)


@pytest.mark.slow
def test_the_verbs_work_for_this_machine_too(holdfast: Command) -> None:
    assert holdfast("secret", "ls", "local").code == 0
    done = holdfast("secret", "push", "local", "TOKEN", "--from-env", "MINE", env={"MINE": CANARY})
    assert (done.code, CANARY in done.err) == (0, False)
    assert holdfast("secret", "push", "local", "TOKEN", stdin=f"{CANARY}2").err.startswith(
        "holdfast: local: TOKEN was replaced"
    )
    listed = holdfast("secret", "ls", "local", "--json")
    assert CANARY not in listed.out
    (row,) = listed.json()["secrets"]
    assert (row["name"], row["mode"]) == ("TOKEN", "0600")
    done = holdfast("run", "--secret", "TOKEN=file", "--", "sh", "-c", 'echo "$TOKEN"; wc -c < "$TOKEN"')
    assert done.out.splitlines() == [str(Path.home() / ".config/holdfast/secrets/TOKEN"), str(len(CANARY) + 1)]
    assert holdfast("secret", "rm", "local", "TOKEN").code == 0
    done = holdfast("run", "--secret", "TOKEN", "--", "true")
    assert (done.code, "holdfast secret push local TOKEN" in done.err) == (78, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "stdin", "seen"),
    [
        (("push", "local", "../x"), "v", "is no name of a secret"),
        (("push", "local", "A"), "", "is empty"),
        (("push", "local", "A"), "x" * (1 << 20), "larger than 64 KiB"),
        (("push", "local", "A", "--from-env", "NOT_SET"), "v", "NOT_SET is not set here"),
        (("push", "local", "A", "value"), "v", "argument"),
        (("push", "nowhere", "A"), "v", "there is no place nowhere"),
        (("push", "local", "a.org", "--netrc", "--from-env", "X"), "v", "do not go together"),
        (("rm", "local", "a/b"), "", "is no name of a secret"),
        (("check", "local", "A", "--url", "http://example.org/"), "", "unencrypted"),
    ],
)
def test_bad_words_are_refused(holdfast: Command, words: tuple[str, ...], stdin: str, seen: str) -> None:
    if words[0] == "check":
        assert holdfast("secret", "push", "local", "A", stdin="v").code == 0
    done = holdfast("secret", *words, stdin=stdin)
    assert (done.code, seen in done.err) == (66 if "nowhere" in words else 64, True), done.err


@pytest.fixture
def service() -> Iterator[str]:
    """The address of a service of the test's own, on loopback: it answers with the status that its path names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_sent = self.headers["Authorization"] == f"Bearer {CANARY}"
            self.send_response(int(self.path.split("/")[1]) if is_sent else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.requirement("PRE-14")
def test_PRE_14_a_secret_is_proven_by_the_service_and_never_shown(holdfast: Command, service: str) -> None:
    assert holdfast("secret", "push", "local", "TOKEN", stdin=f"{CANARY}\n").code == 0
    for status, code, said in (
        (200, 0, "local: TOKEN is accepted there (200)"),
        (401, NotPermitted.exit_code, "TOKEN is refused there (401)"),
        (500, StorageError.exit_code, "whether TOKEN works cannot be told"),
    ):
        done = holdfast("secret", "check", "local", "TOKEN", "--url", f"{service}/{status}")
        assert (done.code, said in done.err) == (code, True), done
        assert not FORMS.is_in(done.out + done.err)
    # Its answer is its exit code: it has no form for programs, and says so without a value too.
    done = holdfast("secret", "check", "local", "TOKEN", "--url", f"{service}/200", "--json")
    assert (done.code, json.loads(done.out)["error"]["code"]) == (64, "usage"), done
    assert not FORMS.is_in(done.out + done.err)


@pytest.mark.slow
def test_on_a_terminal_it_is_asked_for_and_not_shown(isolated_environment: dict[str, str]) -> None:
    assert isolated_environment
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*ENTRY, "secret", "push", "local", "TOKEN"])
    shown = b""
    while b"(not shown): " not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, f"{CANARY}\n".encode())
    try:
        while piece := os.read(terminal, 1000):
            shown += piece
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    assert CANARY.encode() not in shown
    assert (Path.home() / ".config/holdfast/secrets/TOKEN").read_text() == CANARY


@pytest.mark.slow
@pytest.mark.requirement("OBS-04")
def test_OBS_04_our_texts_leave_out_what_a_job_said_of_its_secret(holdfast: Command) -> None:
    assert holdfast("secret", "push", "local", "TOKEN", stdin=CANARY).code == 0
    script = 'import os; print("using", os.environ["TOKEN"]); raise ValueError("bad " + os.environ["TOKEN"])'
    done = holdfast("run", "--secret", "TOKEN", "--json", "--", sys.executable, "-c", script)
    run_dir = Path(json.loads(done.out)["run_dir"])
    assert done.code == 1
    assert [Path(path).name for path in find_canary(run_dir)] == ["output.log"]
    assert "[redacted]" in (run_dir / "attempts/1/failure.md").read_text()
