"""``holdfast exec`` and ``holdfast shell``: commands beside a run, here and at a place behind a real sshd."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.processes import find_marked
from tests.cli.conftest import ENTRY
from tests.cli.far import FarRun, far_run
from tests.cli.live import live_run
from tests.rundirs import ended, make_run
from tests.waiting import LIMIT_S, LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.timeout(180)]
__all__ = ["far_run"]
SHOW = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]))"
AWKWARD = ["a b", "it's", 'quo"te', "new\nline", "!", "$HOME", "Grüße", "--json", "", "*"]


@pytest.mark.slow
def test_a_command_beside_a_run_has_its_directory_and_environment_and_is_no_part_of_it(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "kept-in-memory")
    with live_run(holdfast, "--env", "COLOUR=blue") as run:
        monkeypatch.delenv("API_TOKEN")
        done = holdfast("exec", run.run_id, "--", sys.executable, "-c", SHOW, *AWKWARD, cwd="/")
        where, words, environ = json.loads(done.out)
        assert (done.code, done.err, where, words) == (0, "", str(tmp_path), AWKWARD)
        assert (environ["COLOUR"], environ["CUDA_VISIBLE_DEVICES"]) == ("blue", "-1")
        assert environ["API_TOKEN"] == "kept-in-memory"
        assert environ["HOLDFAST_RUN_DIR"] == run.run_dir
        assert not {"HOLDFAST_RUN_ID", "HOLDFAST_ATTEMPT", "HOLDFAST_HEARTBEAT"} & environ.keys()
        beside = subprocess.Popen(
            [*ENTRY, "exec", run.run_id, "--", "sh", "-c", "echo up; read -r line; exit 7"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert beside.stdout is not None
        assert beside.stdout.readline() == b"up\n"
        assert beside.pid not in {member.pid for member in find_marked(run.run_id)}
        assert holdfast("stop", "--now", "--wait", "15s", run.run_id).code in (0, 130)
        assert beside.poll() is None
        beside.communicate(b"\n")
        assert beside.returncode == 7


@pytest.mark.slow
def test_exit_codes_pass_and_what_cannot_start_is_as_a_shell_says_it(holdfast: Command) -> None:
    run_id = "20261120-100000-digits-0a1b"
    make_run(os.environ["HOLDFAST_RUNS"], run_id, ended())
    for code in (0, 3, 255):
        done = holdfast("exec", "digits", "--", "sh", "-c", f"exit {code}")
        assert (done.code, done.err) == (code, f"holdfast: {run_id} has ended: no card is held for this command\n")
    assert holdfast("exec", "digits", "--", "no-such-program").code == 127
    assert holdfast("exec", "digits", "--", "/etc/passwd").code == 126
    assert holdfast("exec", "digits").code == 64
    assert holdfast("exec", "nothing", "--", "true").code == 66
    refused = holdfast("shell", "digits")
    assert (refused.code, "there is no terminal" in refused.err) == (64, True)


def test_a_directory_that_has_gone_is_named(holdfast: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    assert holdfast("run", "--", "true", cwd=gone).code == 0
    gone.rmdir()
    done = holdfast("exec", "true", "--", "true")
    assert (done.code, f"its working directory {gone}: No such file" in done.err) == (74, True)


@pytest.mark.slow
def test_at_a_place_everything_passes_and_the_end_of_the_link_ends_the_command(
    far_run: FarRun, holdfast: Command
) -> None:
    done = holdfast("exec", far_run.name, "--", "python3", "-c", SHOW, *AWKWARD, timeout_s=LONG_S)
    where, words, environ = json.loads(done.out)
    assert (done.code, done.err, where, words) == (0, "", f"{far_run.run_dir}/work", AWKWARD)
    assert (environ["COLOUR"], environ["CUDA_VISIBLE_DEVICES"]) == ("blue", "-1")
    assert not {"HOLDFAST_RUN_ID", "HOLDFAST_PLACE"} & environ.keys()
    for script, code in (("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)):
        assert holdfast("exec", far_run.name, "--", "sh", "-c", script, timeout_s=LONG_S).code == code
    mixed = r"cat; printf '\001\r50%%\r100%%\n' >&2"
    done = holdfast("exec", "--on", "gpu1", far_run.run_id, "--", "sh", "-c", mixed, stdin="x\ny", timeout_s=LONG_S)
    assert (done.out, done.err) == ("x\ny", "\x01\n50%\n100%\n")  # text mode: CR is a newline
    assert holdfast("exec", far_run.name, "--", "no-such", timeout_s=LONG_S).code == 127
    held = subprocess.Popen(
        [*ENTRY, "exec", far_run.name, "--", "sh", "-c", "echo up; exec sleep 543.21"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert held.stdout is not None
    assert held.stdout.readline() == b"up\n"
    held.send_signal(signal.SIGINT)
    assert held.wait(LIMIT_S) == 130
    held.stdout.close()
    wait_until(lambda: not [one for one in far_run.box.processes("box").values() if "543.21" in one])
    assert holdfast("show", "--json", far_run.name, timeout_s=LONG_S).json()["condition"] == "running"


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("exec", "--", "sleep", "271.5"), ("wait",), ("logs", "-f")], ids=lambda one: one[0])
def test_a_desk_that_is_killed_leaves_no_command_at_the_place(far_run: FarRun, verb: tuple[str, ...]) -> None:
    """Where nothing is written nobody would notice that nobody reads: the shared connection lives on."""

    def list_there() -> list[str]:
        lines = far_run.box.processes("box").values()
        return [line for line in lines if "hf.py" in line and " supervise " not in line and " keep " not in line]

    before = set(list_there())
    options, behind = ((), verb[1:]) if verb[1:2] == ("--",) else (verb[1:], ())
    words = [*ENTRY, verb[0], *options, far_run.name, *behind]
    desk = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: set(list_there()) - before, LONG_S, what="it runs there")
    desk.kill()
    desk.communicate()
    wait_until(lambda: not set(list_there()) - before, what="it has ended there")


@pytest.mark.slow
def test_a_shell_opens_on_a_terminal_at_the_place(far_run: FarRun) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(ENTRY[0], [*ENTRY, "shell", far_run.name])
    seen = b""
    try:
        os.write(terminal, b"echo $COLOUR-$((6*7))-${HOLDFAST_RUN_ID:-none}; pwd; tty; exit 5\n")
        while select.select([terminal], [], [], LONG_S)[0]:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            seen += data
            if not data:
                break
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 5, seen
    assert b"blue-42-none" in seen
    assert f"{far_run.run_dir}/work".encode() in seen
    assert b"/dev/pts/" in seen
    (left,) = (line for line in seen.splitlines() if b"leaving it touches nothing of " in line)
    assert far_run.run_id.encode() in left
