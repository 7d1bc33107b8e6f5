"""``holdfast place``: configuration, measuring, and host keys, against a real sshd."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.desk.orders.journal import Step, claim_order, note_step, read_journal
from holdfast.desk.places.config import places_path
from holdfast.desk.places.facts import place_directory, write_facts
from holdfast.desk.places.known_hosts import hash_name, parse_keys
from holdfast.model.place import Place
from tests.cli.conftest import ENTRY
from tests.desk.boxes import FACTS_OF_A_BOX
from tests.json_forms import find_faults
from tests.sshd import SECOND_FACTOR
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.sshd import Sshd

pytestmark = pytest.mark.cli


@pytest.fixture(autouse=True)
def own_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh with a configuration of the test, not of this machine; `ssh_desk` puts another in its stead."""
    config = tmp_path / "ssh_config"
    config.write_text("Host lab\n  HostName 127.0.0.1\n  Port 1\nHost UPPER\n")
    script = tmp_path / "ssh"
    script.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SSH", str(script))
    return config


def read_config() -> str:
    return Path(places_path()).read_text()


# ------------------------------------------------------------------------------------------------------ configuration


@pytest.mark.slow
def test_a_place_is_added_shown_listed_and_removed(holdfast: Command) -> None:
    added = holdfast("place", "add", "gpu1", "me@gpu1.lab", "--root", "~/runs", "--port", "2222", "--no-probe")
    assert (added.code, added.err) == (0, "")
    assert added.out.startswith(f"gpu1: me@gpu1.lab port 2222, written to {places_path()}\n")
    assert "holdfast run --on gpu1" in added.out
    assert read_config() == '[gpu1]\nhost = "me@gpu1.lab"\nport = 2222\nroot = "~/runs"\n'
    (row,) = holdfast("place", "ls", "--json").json()["places"]
    assert {key: row[key] for key in ("name", "kind", "host", "root", "measured_at")} == {
        "name": "gpu1",
        "kind": "ssh",
        "host": "me@gpu1.lab",
        "root": "~/runs",
        "measured_at": None,
    }
    assert "never" in holdfast("place").out
    assert "holdfast place probe gpu1" in holdfast("place", "show", "gpu1").err
    assert holdfast("place", "rm", "gpu1").code == 0
    assert read_config() == ""
    assert "no place is configured" in holdfast("place", "ls").err


@pytest.mark.slow
def test_what_is_there_already_is_refused_with_the_difference(holdfast: Command) -> None:
    assert holdfast("place", "add", "gpu1", "me@a", "--setup", "x", "--setup", "y", "--no-probe").code == 0
    before = read_config()
    refused = holdfast("place", "add", "gpu1", "me@b", "--env-from", "login", "--no-probe")
    assert refused.code == 64
    assert "host me@a -> me@b; setup x / y -> unset; env_from none -> login" in refused.err
    assert "--replace" in refused.err
    assert read_config() == before
    assert holdfast("place", "add", "gpu1", "me@a", "--setup", "x", "--setup", "y", "--no-probe").code == 0
    assert read_config() == before
    assert holdfast("place", "add", "gpu1", "me@b", "--replace", "--no-probe").code == 0
    assert read_config() == '[gpu1]\nhost = "me@b"\n'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("../x", "me@a"), "is no name for a place"),
        (("a:b", "me@a"), "'a:b' is no name for a place: a alone would be one"),
        (("GPU1", "me@a"), "gpu1 would do"),
        (("local", "me@a"), "local is this machine"),
        (("nobody",), "nobody is no Host of ssh's configuration"),
        (("a", "me@a:2222"), "USER@HOST: 'me@a:2222': ssh takes the port apart from the host: me@a, and --port 2222"),
        (("a", "-oProxyCommand=x"), "such option"),
        (("a", "me@a", "--root", "runs"), "--root: 'runs' is neither absolute"),
        (("a", "me@a", "--root", "/a b"), "--root: '/a b' may have letters"),
        (("a", "me@a", "--python", "bin/x"), "--python: 'bin/x' is neither absolute"),
        (("a", "me@a", "--python", "python3.11"), "--python: 'python3.11' is neither absolute"),
        (("a", "me@a", "--port", "0"), "--port"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_written(words: tuple[str, ...], said: str, holdfast: Command) -> None:
    ended = holdfast("place", "add", *words)
    assert ended.code == 64
    assert said in ended.err
    assert not os.path.exists(places_path())


def test_an_alias_of_ssh_is_a_place_and_gets_a_name_where_it_has_none(holdfast: Command) -> None:
    shown = holdfast("place", "show", "lab", "--json").json()
    assert find_faults("place show", shown) == []
    assert shown["place"] == {**shown["place"], "name": "lab", "host": "lab", "configured": False}
    assert "holdfast place add upper UPPER; then write upper" in holdfast("place", "show", "UPPER").err
    assert holdfast("place", "add", "lab", "--no-probe").code == 0
    assert read_config() == '[lab]\nhost = "lab"\n'


def test_an_unknown_place_names_the_nearest_and_how_to_add_it(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    ended = holdfast("place", "show", "gup1")
    assert ended.code == 66
    assert "there is no place gup1; configured: gpu1; aliases of ssh: lab" in ended.err
    assert "did you mean gpu1? else: holdfast place add gup1 USER@HOST" in ended.err
    holdfast("place", "add", "gpu2", "me@b", "--no-probe")
    for words in (("ls", "--on", "gpux"), ("show", "gpux:digits"), ("run", "--on", "gpux", "--", "true")):
        ended = holdfast(*words)
        assert (ended.code, "did you mean gpu1 or gpu2?" in ended.err) == (66, True), words


@pytest.mark.slow
def test_a_broken_file_names_line_and_key_and_stops_no_verb_that_needs_no_place(holdfast: Command) -> None:
    os.makedirs(os.path.dirname(places_path()), mode=0o700)
    Path(places_path()).write_text('[a]\nhots = "x"\n')
    ended = holdfast("place", "ls")
    assert ended.code == 64
    assert f"{places_path()}:2: a.hots: unknown key; did you mean host?" in ended.err
    assert holdfast("ls", "--here").code == 0
    assert holdfast("place", "rm", "a").code == 0
    assert holdfast("place", "ls").code == 0


def test_a_file_that_others_may_write_is_not_read(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    os.chmod(places_path(), 0o666)
    ended = holdfast("place", "ls")
    assert ended.code == 77
    assert f"chmod go-w {places_path()}" in ended.err


@pytest.mark.slow
def test_a_place_with_unfinished_runs_is_not_forgotten_unasked(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    directory = Path(place_directory("gpu1"))
    directory.mkdir(parents=True)
    (directory / "runs.tsv").write_text(
        "20261120-104501-digits-3fa2\tlive\t2026-11-20T10:00:00.000Z\t{}\n"
        "20261120-104502-digits-3fa3\tended\t2026-11-20T10:00:00.000Z\t{}\n"
    )
    refused = holdfast("place", "rm", "gpu1")
    assert refused.code == 75
    assert "20261120-104501-digits-3fa2" in refused.err
    assert "3fa3" not in refused.err
    assert directory.exists()
    assert holdfast("place", "rm", "gpu1", "--forget-runs").code == 0
    assert not directory.exists()
    assert holdfast("place", "rm", "gpu1").code == 66


def test_a_place_with_an_order_without_an_answer_is_not_forgotten_unasked(holdfast: Command) -> None:
    """Without the journal the same command would begin a second run."""
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        note_step("gpu1", Step.SENT, claim.run_id)
    before = read_journal("gpu1")
    assert [entry.step for entry in before] == [Step.INTENT, Step.SENT]
    refused = holdfast("place", "rm", "gpu1")
    assert (refused.code, claim.run_id in refused.err, "`holdfast reconcile gpu1`" in refused.err) == (75, True, True)
    assert read_journal("gpu1") == before
    assert holdfast("place", "rm", "gpu1", "--forget-runs", "--json").json()["forgotten_runs"] == [claim.run_id]
    assert read_journal("gpu1") == ()


@pytest.mark.slow
def test_a_removed_place_is_not_asked_any_more_though_its_receipts_stay(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@127.0.0.1", "--port", "1", "--no-probe")
    receipts = Path(place_directory("gpu1")) / "receipts"
    receipts.mkdir(parents=True)
    assert "gpu1 does not answer" in holdfast("ls").err
    assert holdfast("place", "rm", "gpu1").code == 0
    for words in (("ls",), ("ls", "--all"), ("patrol",)):
        assert "gpu1" not in holdfast(*words).err
        assert holdfast(*words, "--json").json()["places"] == []
    # Of a look that went on meanwhile, or a table that was taken out by hand, something may be left.
    (receipts.parent / "reach.json").write_text("{}")
    assert [place["place"] for place in holdfast("ls", "--json").json()["places"]] == ["gpu1"]
    again = holdfast("place", "rm", "gpu1")
    assert (again.code, f"kept, as proof: {receipts}" in again.err) == (0, True)
    assert "gpu1: forgotten; it was not configured any more" in again.err
    assert holdfast("ls", "--json").json()["places"] == []
    assert receipts.is_dir()
    assert holdfast("place", "rm", "gpu1").code == 66


@pytest.mark.gotcha("GEN1")
def test_a_place_that_bills_is_not_forgotten_without_a_word(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    with open(places_path(), "a", encoding="utf-8") as file:
        file.write('[gpu1.rent]\nsince = "2026-11-20T08:00Z"\nrate = 2\ncurrency = "USD"\n')
    (Path(place_directory("gpu1")) / "receipts").mkdir(parents=True)
    done = holdfast("place", "rm", "gpu1")
    assert done.code == 0
    assert f"kept, as proof: {place_directory('gpu1')}/receipts" in done.err
    assert "gpu1 was not seen to be gone: " in done.err
    assert "USD so far, and nothing reminds of it any more" in done.err


@pytest.mark.slow
def test_a_name_is_completed_from_files_alone(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@a", "--no-probe")
    for words, offered in (("show ", ["local", "gpu1", "lab"]), ("rm g", ["gpu1"]), ("probe l", ["local", "lab"])):
        env = {
            "_HOLDFAST_COMPLETE": "bash_complete",
            "COMP_WORDS": f"holdfast place {words}",
            "COMP_CWORD": "3",
        }
        assert [line.removeprefix("plain,") for line in holdfast(env=env).out.split()] == offered


# ------------------------------------------------------------------------------------------------------------- facts

PAGE = """\
place  gpu1 (me@gpu1.lab)
from   {path}

measured      2026-11-22 10:00:00, {age} ago
machine       gpu1, Linux 6.1.0
account       me (uid 1000), home /home/me, shell /bin/bash
runs root     /data/runs
python        3.11.9 /opt/conda/bin/python3
cpus, memory  16, 128 GiB
cards         0: NVIDIA H200, 140 GiB
              1: NVIDIA H200, 140 GiB
driver        550.54
disks         /data/runs: ext4, 500 GiB of 1000 GiB free, 30 million inodes free
locks         kept by the file system of the runs root
pidfds        native
containment   cgroup_v2
limits        nofile 1024, nproc unlimited
tools         git, rsync, tar (not there: nvidia-smi, tmux)
clock         as here
"""


@pytest.mark.slow
def test_the_page_of_a_place(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@gpu1.lab", "--no-probe")
    write_facts(Place("gpu1", host="me@gpu1.lab"), FACTS_OF_A_BOX)
    shown = holdfast("place", "show", "gpu1")
    age = (
        next(line for line in shown.out.splitlines() if line.startswith("measured")).split(", ")[1].removesuffix(" ago")
    )
    assert shown.out == PAGE.format(path=places_path(), age=age)
    assert shown.err == ""
    assert "2" in holdfast("place", "ls").out


def test_damaged_facts_are_absent_and_it_is_said(holdfast: Command) -> None:
    holdfast("place", "add", "gpu1", "me@gpu1.lab", "--no-probe")
    write_facts(Place("gpu1", host="me@gpu1.lab"), FACTS_OF_A_BOX)
    (Path(place_directory("gpu1")) / "facts.json").write_text("{")
    shown = holdfast("place", "show", "gpu1")
    assert shown.code == 0
    assert "facts.json is damaged" in shown.err
    assert "it was never measured" in shown.err


@pytest.mark.slow
@pytest.mark.requirement("BSSH-06")
def test_BSSH_06_a_box_is_inspected_with_one_command(holdfast: Command, ssh_desk: Sshd) -> None:
    name = ssh_desk.alias("box")
    found = holdfast("place", "probe", name, "--json", env={"A_SECRET_TOKEN": "canary-5f2c"}).json()
    assert find_faults("place probe", found) == []
    facts = found["facts"]
    assert (facts["user"], facts["uid"]) == ("box", ssh_desk.users["box"])
    held = ("cards", "memory_limit_bytes", "cpu_limit", "task_limit")
    for key in ("python", "python_version", "disks", "limits", "tools", "flock", "pidfd", "kernel", "box", *held):
        assert key in facts
    assert facts["root"].startswith(str(ssh_desk.home("box")))
    assert any(disk["free_inodes"] is not None for disk in facts["disks"])
    assert abs(facts["clock_ahead_s"]) < 60
    kept = (Path(place_directory(name)) / "facts.json").read_text()
    assert json.loads(kept)["user"] == "box"
    assert "canary-5f2c" not in kept
    listed = holdfast("place", "ls", "--probe", "--json").json()
    assert find_faults("place ls", listed) == []
    (row,) = listed["places"]
    assert (row["name"], row["reach"], row["measured_at"]) == (name, "here", facts["measured_at"])


@pytest.mark.slow
def test_a_place_is_measured_when_it_is_added(holdfast: Command, ssh_desk: Sshd) -> None:
    added = holdfast("place", "add", "gpu1", ssh_desk.alias("box"), "--root", "~/elsewhere")
    assert added.code == 0
    assert f"runs in {ssh_desk.home('box')}/elsewhere" in added.out
    assert "run a job there" in added.out
    tops = ("TMPDIR", "holdfast-ssh-*/*"), ("XDG_RUNTIME_DIR", "holdfast/*")
    shared = [path for name, at in tops for path in Path(os.environ[name]).glob(at) if path.is_socket()]
    assert holdfast("place", "rm", "gpu1").code == 0
    assert len(shared) == 1
    wait_until(lambda: not shared[0].exists(), what="the end of the shared connection")


@pytest.mark.slow
def test_a_place_that_cannot_be_reached_is_added_and_it_is_said(holdfast: Command) -> None:
    """Port 1 of the loopback: nothing listens there."""
    added = holdfast("place", "add", "lab", "--json").json()
    assert added["facts"] is None
    assert added["reach"] == "unreachable"
    assert read_config() == '[lab]\nhost = "lab"\n'
    ended = holdfast("place", "probe", "lab")
    assert ended.code == 69
    (row,) = holdfast("place", "ls", "--probe", "--json").json()["places"]
    assert row["reach"] == "unreachable"


# --------------------------------------------------------------------------------------------------------- host keys


def alias_with(ssh_desk: Sshd, known_hosts: Path, **settings: str) -> str:
    return ssh_desk.alias("box", via=None, UserKnownHostsFile=f'"{known_hosts}"', **settings)


def make_key(directory: Path) -> str:
    """A public key that nobody has: type and base64."""
    path = directory / f"key-{os.urandom(4).hex()}"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def fingerprint_of(key: str) -> str:
    return parse_keys(f"x {key}")[0].fingerprint


def reach(holdfast: Command, name: str) -> Any:
    """``here``, or the error's code with its words."""
    (row,) = [row for row in holdfast("place", "ls", "--probe", "--json").json()["places"] if row["name"] == name]
    return " ".join(filter(None, (row["reach"], row["reason"])))


@pytest.mark.slow
@pytest.mark.requirement("XPORT-10")
def test_XPORT_10_an_unknown_key_is_recorded_only_with_its_fingerprint(
    holdfast: Command, ssh_desk: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "not there yet" / "known"
    name = alias_with(ssh_desk, known)
    refused = holdfast("place", "add", "gpu1", name, "--json").json()
    assert refused["reach"] == "refused"
    assert "holdfast place trust gpu1" in refused["hint"]
    unasked = holdfast("place", "trust", "gpu1")
    assert unasked.code == 64
    assert ssh_desk.fingerprint() in unasked.out
    assert "--yes-fingerprint" in unasked.err
    wrong = holdfast("place", "trust", "gpu1", "--yes-fingerprint", "SHA256:" + "A" * 43)
    assert wrong.code == 77
    assert ssh_desk.fingerprint() in wrong.err
    assert not known.exists()
    trusted = holdfast("place", "trust", "gpu1", "--yes-fingerprint", ssh_desk.fingerprint())
    assert (trusted.code, f"recorded in {known}" in trusted.err) == (0, True)
    assert known.stat().st_mode & 0o777 == 0o600
    assert known.read_text().startswith(f"[127.0.0.1]:{ssh_desk.port} ssh-ed25519 ")
    assert reach(holdfast, "gpu1") == "here"
    again = holdfast("place", "trust", "gpu1")
    assert (again.code, "trusted already" in again.err) == (0, True)


@pytest.mark.requirement("XPORT-10")
@pytest.mark.parametrize("hashed", [pytest.param("no", marks=pytest.mark.slow), "yes"])
def test_XPORT_10_a_changed_key_is_refused_and_trust_replaces_only_this_host_and_port(
    hashed: str, holdfast: Command, ssh_desk: Sshd, tmp_path: Path
) -> None:
    other = make_key(tmp_path)
    port = ssh_desk.port
    mine = f"[127.0.0.1]:{port}"
    known = tmp_path / "known_hosts"
    kept = f"# mine\n[127.0.0.1]:{port + 1} {other}\n127.0.0.1 {other}\n@revoked {mine} {make_key(tmp_path)}\n"
    known.write_text(f"{kept}{mine},[box.lab]:{port} {other}\n{hash_name(mine, b'x' * 20)} {other}")
    known.chmod(0o640)
    name = alias_with(ssh_desk, known, HashKnownHosts=hashed)
    assert holdfast("place", "add", name, "--no-probe").code == 0
    refused = holdfast("place", "probe", name)
    assert refused.code == 77
    assert fingerprint_of(other) in refused.err
    assert ssh_desk.fingerprint() in refused.err
    shown = holdfast("place", "trust", name)
    assert shown.code == 64
    assert "CHANGED" in shown.err
    assert f"{known} line 5" in shown.out
    assert f"{known} line 6" in shown.out
    assert known.read_text().startswith(kept)
    done = holdfast("place", "trust", name, "--yes-fingerprint", ssh_desk.fingerprint(), "--json").json()
    assert done["written"] == [ssh_desk.fingerprint()]
    text = known.read_text()
    assert text.startswith(f"{kept}[box.lab]:{port} {other}\n")
    (line,) = text.removeprefix(f"{kept}[box.lab]:{port} {other}\n").splitlines()
    assert line.startswith("|1|" if hashed == "yes" else f"{mine} ssh-ed25519")
    assert known.stat().st_mode & 0o777 == 0o640
    assert reach(holdfast, name) == "here"


@pytest.mark.requirement("XPORT-10")
def test_XPORT_10_a_revoked_key_is_never_recorded(holdfast: Command, ssh_desk: Sshd, tmp_path: Path) -> None:
    key = " ".join((ssh_desk.root / "host_key.pub").read_text().split()[:2])
    known = tmp_path / "known_hosts"
    known.write_text(f"@revoked * {key}\n")
    name = alias_with(ssh_desk, known)
    refused = holdfast("place", "trust", name, "--yes-fingerprint", ssh_desk.fingerprint())
    assert (refused.code, "revoked" in refused.err) == (77, True)
    assert known.read_text() == f"@revoked * {key}\n"


@pytest.mark.slow
def test_a_host_key_alias_and_a_user_without_known_hosts_are_respected(
    holdfast: Command, ssh_desk: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    name = alias_with(ssh_desk, known, HostKeyAlias="the-box")
    assert holdfast("place", "trust", name, "--yes-fingerprint", ssh_desk.fingerprint()).code == 0
    assert known.read_text().startswith("the-box ssh-ed25519 ")
    assert "is trusted already" in holdfast("place", "trust", name).err
    nowhere = ssh_desk.alias("box", UserKnownHostsFile="/dev/null")
    refused = holdfast("place", "trust", nowhere, "--yes-fingerprint", ssh_desk.fingerprint())
    assert (refused.code, "UserKnownHostsFile" in refused.err) == (64, True)


def test_a_host_that_is_down_has_no_key_to_be_trusted(holdfast: Command) -> None:
    ended = holdfast("place", "trust", "lab")
    assert (ended.code, "unreachable" in ended.err) == (69, True)


def test_a_host_that_talks_without_end_is_not_listened_to(
    holdfast: Command, tmp_path: Path, own_ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, pid = tmp_path / "ssh-of-a-host-that-talks", tmp_path / "pid"
    flood = "while :; do head -c 8192 /dev/zero >&2; sleep 0.01; done"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" -G "*) exec /usr/bin/ssh -F {own_ssh} "$@";; esac\necho $$ > {pid}\n{flood}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SSH", str(script))
    ended = holdfast("place", "trust", "lab")
    assert (ended.code, "more than 64 KiB" in ended.err, len(ended.err) < 1000) == (77, True, True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.slow
@pytest.mark.requirement("XPORT-22")
def test_XPORT_22_a_stale_port_is_a_clear_error_and_the_next_call_has_the_new_one(
    holdfast: Command, ssh_desk: Sshd
) -> None:
    """A rented box that was started anew listens elsewhere; port 1 stands for the old one."""
    name = ssh_desk.alias("box")
    assert holdfast("place", "add", "rented", name, "--port", "1", "--no-probe").code == 0
    stale = holdfast("place", "probe", "rented")
    assert stale.code == 69
    assert "port 1: Connection refused" in stale.err
    assert "holdfast place add rented USER@HOST --port N --replace" in stale.err
    renewed = holdfast("place", "add", "rented", name, "--port", str(ssh_desk.port), "--replace")
    assert (renewed.code, "measured: " in renewed.out) == (0, True)


# ------------------------------------------------------------------------------------------------------------ terminal


def answer(words: list[str], said: list[tuple[str, str]]) -> tuple[int, str]:
    """Run the command on a terminal of its own, and type each answer once its question is there."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(ENTRY[0], [*ENTRY, *words])
    shown = b""
    try:
        for question, typed in [*said, ("\0", "")]:
            while question.encode() not in shown:
                piece = read_terminal(terminal)
                if not piece:
                    break
                shown += piece
            os.write(terminal, typed.encode())
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody has it open any more
        return b""


@pytest.mark.parametrize(("typed", "code"), [("n\n", 64), ("\n", 64), ("y\n", 0)])
def test_on_a_terminal_the_key_is_asked_about(typed: str, code: int, ssh_desk: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    name = alias_with(ssh_desk, known)
    ended, shown = answer(["place", "trust", name], [("Record the offered key? [y/N]: ", typed)])
    assert ended == code
    assert ssh_desk.fingerprint() in shown
    assert known.exists() is (code == 0)


@pytest.mark.slow
def test_a_login_by_hand_opens_the_way_for_all_calls(holdfast: Command, ssh_desk: Sshd) -> None:
    name = ssh_desk.alias("twofactor")
    refused = holdfast("place", "add", name, "--json").json()
    assert refused["reach"] == "refused"
    assert f"holdfast place login {name}" in refused["hint"]
    assert holdfast("place", "login", name).code == 64
    code, shown = answer(["place", "login", name], [("password: ", SECOND_FACTOR + "\n")])
    assert (code, "logged in" in shown) == (0, True)
    assert reach(holdfast, name) == "here"
