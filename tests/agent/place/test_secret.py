"""The entry ``secret``: values are kept whole and for us alone, whoever writes beside, whenever it is killed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.place.secrets import entry as secret
from holdfast.agent.place.secrets.check import check_url
from holdfast.core.job.secret_names import MOST_BYTES, SecretUse, read_use
from holdfast.host.files import files, secret_files
from holdfast.host.files.secret_files import SecretUnusableError, read_variables
from holdfast.model.errors import HoldfastError, NotPermitted, PreflightFailed, StorageError, UsageError
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

CANARY = "canary-7c1f0e"
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from holdfast.agent.place.secrets import entry as secret; sys.exit(secret.main([]))"
)
ENTRY = (sys.executable, "-I", "-B", "-c", PROGRAM, str(Path(secret.__file__).parents[3]))


def push(name: str, value: bytes) -> dict[str, Any]:
    return secret.carry_out({"action": "push", "name": name, "value": base64.b64encode(value).decode()})


def start(asked: dict[str, Any], *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *ENTRY], input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def asked_to_push(name: str, value: bytes) -> dict[str, Any]:
    return {"action": "push", "name": name, "value": base64.b64encode(value).decode()}


@pytest.fixture
def kept(isolated_environment: dict[str, str]) -> Path:
    """Where secrets lie."""
    assert isolated_environment
    Path.home().mkdir(exist_ok=True)
    return Path(secret_files.secrets_directory())


def test_a_value_is_kept_as_it_came_for_this_account_alone(kept: Path) -> None:
    assert push("HF_TOKEN", b"first") == {"name": "HF_TOKEN", "replaced": False, "notice": ""}
    assert push("HF_TOKEN", f"{CANARY}\n".encode())["replaced"]
    assert (kept / "HF_TOKEN").read_bytes() == f"{CANARY}\n".encode()
    assert [oct((kept / name).stat().st_mode & 0o7777) for name in ("HF_TOKEN", ".")] == ["0o600", "0o700"]
    listed = secret.carry_out({"action": "list"})
    assert CANARY not in json.dumps(listed)
    rows = listed["secrets"]
    assert isinstance(rows, list)
    (row,) = rows
    assert set(row) == {"name", "written_at", "mode"}
    assert secret.carry_out({"action": "remove", "name": "HF_TOKEN"}) == {"name": "HF_TOKEN", "removed": True}
    assert not secret.carry_out({"action": "remove", "name": "HF_TOKEN"})["removed"]
    assert secret.carry_out({"action": "list"}) == {"secrets": []}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/etc/x", "A B", "1A", "A\n", "Ä", "x" * 65, "PATH", "HOLDFAST_X"]
)
def test_a_name_that_is_none_is_refused(kept: Path, name: str) -> None:
    for action in ("push", "remove", "check"):
        with pytest.raises(UsageError):
            secret.carry_out({"action": action, "name": name, "value": "eA==", "url": "https://x.org"})
    assert not kept.exists()


@pytest.mark.parametrize("value", [b"", b"\n", b"\r\n\n", b"x" * (1 << 20), b"x" * (MOST_BYTES + 1)])
def test_an_empty_or_huge_value_is_refused(kept: Path, value: bytes) -> None:
    with pytest.raises(UsageError):
        push("A", value)
    assert not (kept / "A").exists()


def test_variables_are_without_the_line_feeds_at_the_end_and_files_are_as_they_came(kept: Path) -> None:
    push("KEY", b"one\ntwo\n")
    push("BINARY", b"\x00\xff\n")
    assert read_variables((read_use("KEY"),)) == {"KEY": "one\ntwo"}
    assert read_variables((read_use("BINARY=file"),)) == {"BINARY": str(kept / "BINARY")}
    assert (kept / "BINARY").read_bytes() == b"\x00\xff\n"
    with pytest.raises(SecretUnusableError, match="BINARY=file"):
        read_variables((SecretUse("BINARY"),))
    for wrong in ("KEY=value", "=file", "../x", "KEY=file=file"):
        with pytest.raises(ValueError, match=r"NAME=file|no name"):
            read_use(wrong)


def test_what_others_could_have_read_or_put_there_is_not_used(kept: Path) -> None:
    push("A", b"value")
    (kept / "A").chmod(0o640)
    with pytest.raises(SecretUnusableError, match="mode 0640"):
        secret_files.read_secret("A")
    (kept / "A").unlink()
    (kept / "A").symlink_to("/etc/hostname")
    with pytest.raises(SecretUnusableError):
        secret_files.read_secret("A")
    push("A", b"value")
    assert not (kept / "A").is_symlink()
    kept.parent.chmod(0o777)
    with pytest.raises(NotPermitted, match="written by others"):
        push("A", b"other")
    kept.parent.chmod(0o700)


@pytest.mark.requirement("XPORT-13", "B-76")
def test_XPORT_13_storage_shared_with_others_is_refused_and_a_network_home_is_said(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(Path.home())
    monkeypatch.setattr(
        secret_files, "filesystem_of", lambda path: ("ext4", "8:1") if path == home else ("nfs4", "0:50")
    )
    with pytest.raises(NotPermitted, match=r"shared storage \(nfs4\)"):
        push("A", b"value")
    assert not (kept / "A").exists()
    monkeypatch.setattr(secret_files, "filesystem_of", lambda _path: ("nfs4", "0:50"))
    assert "on a network (nfs4)" in push("A", b"value")["notice"]


@pytest.mark.requirement("XPORT-13")
@pytest.mark.parametrize("kind", ["nfs4", "ext4"])
def test_XPORT_13_a_netrc_that_is_a_link_to_shared_storage_gets_no_secret(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert not kept.exists()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "netrc").write_text("machine a.org login me password one\n")
    (Path.home() / ".netrc").symlink_to(shared / "netrc")
    if kind == "ext4":
        shared.chmod(0o777)
    monkeypatch.setattr(
        secret_files, "filesystem_of", lambda path: (kind, "0:50") if path == str(shared) else ("ext4", "8:1")
    )
    with pytest.raises(NotPermitted, match=r"shared storage \(nfs4\)" if kind == "nfs4" else "written by others"):
        secret.carry_out({"action": "netrc", "machine": "b.org", "words": {"password": CANARY}})
    assert CANARY not in (shared / "netrc").read_text()


@pytest.mark.slow
def test_many_at_once_are_each_whole(kept: Path) -> None:
    values = [bytes([65 + n]) * 30_000 for n in range(8)]
    entries = [
        {"action": "netrc", "machine": f"m{n}.org", "words": {"login": "me", "password": f"p{n}"}} for n in range(8)
    ]
    with ThreadPoolExecutor(4) as pool:
        done = [*pool.map(start, [asked_to_push("A", value) for value in values] + entries)]
    assert [item.returncode for item in done] == [0] * 16, [item.stdout for item in done]
    assert (kept / "A").read_bytes() in values
    netrc = (Path.home() / ".netrc").read_text()
    assert sorted(line for line in netrc.splitlines() if "machine" in line) == [f"machine m{n}.org" for n in range(8)]
    assert sorted(os.listdir(kept)) == [".lock", "A"]


@pytest.mark.parametrize("call", ["fsync", "/^rename"])
def test_a_kill_at_the_commit_leaves_the_old_value_and_the_next_push_no_trace(kept: Path, call: str) -> None:
    push("A", b"old")
    (Path.home() / ".netrc").write_text("machine a.org login me password one\n")
    kill = ("strace", "-qq", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL")
    entry = {"action": "netrc", "machine": "b.org", "words": {"password": CANARY}}
    for asked in (asked_to_push("A", CANARY.encode()), entry):
        assert start(asked, *kill).returncode != 0
    left = [path for path in (*kept.iterdir(), *Path.home().iterdir()) if files.is_temporary(path.name)]
    assert left, "the kill came before anything was written"
    # The kill comes as the call returns: the new value may stand, and never a part of one.
    assert (kept / "A").read_bytes() in (b"old", CANARY.encode())
    assert push("A", b"new")["replaced"]
    secret.carry_out(entry)
    assert [path for path in (*kept.iterdir(), *Path.home().iterdir()) if files.is_temporary(path.name)] == []
    assert (Path.home() / ".netrc").read_text().startswith("machine a.org login me password one\n")


@pytest.mark.requirement("XPORT-12")
def test_XPORT_12_a_remote_netrc_keeps_its_other_machines_and_gets_mode_0600(kept: Path) -> None:
    assert not kept.exists()
    real = Path.home() / "dotfiles"
    real.write_text("# mine\nmachine a.org login me password one\n")
    real.chmod(0o644)
    (Path.home() / ".netrc").symlink_to(real)
    secret.carry_out({"action": "netrc", "machine": "b.org", "words": {"login": "you", "password": "two"}})
    assert real.read_text() == (
        "# mine\nmachine a.org login me password one\nmachine b.org\n  login you\n  password two\n"
    )
    assert (oct(real.stat().st_mode & 0o7777), (Path.home() / ".netrc").is_symlink()) == ("0o600", True)
    real.write_text(f"{CANARY} is no netrc\n")
    with pytest.raises(StorageError, match="line 1") as caught:
        secret.carry_out({"action": "netrc", "machine": "b.org", "words": {"password": "two"}})
    assert CANARY not in str(caught.value)
    assert real.read_text() == f"{CANARY} is no netrc\n"


# ---------------------------------------------------------------------------------------------------------------- check


class Endpoint:
    """Answers by the path asked for (``/401``); notes what it was sent."""

    def __init__(self) -> None:
        endpoint = self
        self.seen: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.seen.append((self.path, self.headers["Authorization"]))
                self.send_response(int(self.path.split("/")[1]))
                self.send_header("Location", f"http://127.0.0.1:{endpoint.port}/200/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def url(self, status: int) -> str:
        return f"http://127.0.0.1:{self.port}/{status}"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


@pytest.mark.requirement("PRE-14")
@pytest.mark.parametrize("status", [200, 401, 403, 307, 500])
def test_PRE_14_a_credential_is_proven_by_one_request_that_is_not_followed(
    kept: Path, endpoint: Endpoint, status: int
) -> None:
    push("TOKEN", f"{CANARY}\n".encode())
    done = start({"action": "check", "name": "TOKEN", "url": endpoint.url(status)})
    assert json.loads(done.stdout) == {"schema": 1, "name": "TOKEN", "status": status}, done.stderr
    assert endpoint.seen == [(f"/{status}", f"Bearer {CANARY}")]
    assert CANARY not in done.stdout + done.stderr
    assert kept.is_dir()


def test_a_check_without_secret_or_answer_says_so_and_shows_nothing(kept: Path, endpoint: Endpoint) -> None:
    with pytest.raises(PreflightFailed, match="is not on this box"):
        secret.carry_out({"action": "check", "name": "TOKEN", "url": endpoint.url(200)})
    push("TOKEN", f"{CANARY}\r\nX-Other: 1".encode())
    with pytest.raises(UsageError, match="more than one line") as caught:
        secret.carry_out({"action": "check", "name": "TOKEN", "url": endpoint.url(200)})
    assert CANARY not in str(caught.value)
    push("TOKEN", CANARY.encode())
    with pytest.raises(StorageError, match="gave no answer"):
        secret.carry_out({"action": "check", "name": "TOKEN", "url": "http://127.0.0.1:9/"})
    assert endpoint.seen == []
    assert kept.is_dir()


@pytest.mark.parametrize(
    "url",
    ["http://example.org/", "ftp://example.org/", "https://me:pw@example.org/", "https://", "https://a b/", "x", "https://x:99999/"],
)  # fmt: skip
def test_an_address_that_a_secret_must_not_go_to_is_refused(url: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        check_url(url)
    assert caught.value.exit_code == 64


def test_a_lock_that_is_held_is_waited_for(kept: Path) -> None:
    push("A", b"old")
    with secret_files.locked(str(kept)):
        writer = subprocess.Popen(ENTRY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert writer.stdin is not None
        writer.stdin.write(json.dumps(asked_to_push("A", b"new")))
        writer.stdin.close()
        lock = (kept / ".lock").stat().st_ino
        wait_until(lambda: _opens(writer.pid, lock), what="the writer is at the lock")
        assert (kept / "A").read_bytes() == b"old"
    assert writer.wait(LIMIT_S) == 0
    assert writer.stdout is not None
    writer.stdout.close()
    assert (kept / "A").read_bytes() == b"new"


def _opens(pid: int, inode: int) -> bool:
    try:
        return any(os.stat(f"/proc/{pid}/fd/{name}").st_ino == inode for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False
