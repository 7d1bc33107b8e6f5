"""Verbs at a place: what is printed there is what is printed here, and the exit code passes through."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.desk.route.send import send
from holdfast.model.errors import CutOff, Refused, Unreachable, UsageError
from holdfast.model.place import Place
from tests.cli.conftest import ENTRY
from tests.cli.live import live_run
from tests.cli.placed.following import Follower
from tests.desk.route.loop import WarmLoop, add_place
from tests.desk.route.terminal import answer_at_terminal
from tests.waiting import LIMIT_S, LONG_S, PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.transfer.box import Box
    from tests.cli.conftest import Command

pytestmark = pytest.mark.process

AGES = re.compile(
    r"\d+(\.\d+)? (s|ms|min)\b|\d{4}-\d\d-\d\d[T ][\d:.]+Z?|, version \d+|at \d\d:\d\d:\d\d|\d+(\.\d+)? [kKMGT]?i?B\b"
)

OWN = ("alias holdfast=", '"queue_id":')
"""How the program is called there, and a queue that is made for each look while there is none."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> WarmLoop:
    """One root for all: the bundle is pushed once."""
    return WarmLoop(tmp_path_factory.mktemp("loop"))


@pytest.fixture(autouse=True)
def loop(
    warm: WarmLoop, no_leaks: None, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[WarmLoop]:
    """Make this machine a place, too, with the same runs."""
    monkeypatch.setenv("HOLDFAST_RUNS", str(warm.root))
    warm.add()
    yield warm
    warm.keep()


class Unreached:
    """A place whose link is down."""

    place = Place("gpu1", host="gpu1")

    def prepare(self, *, sends: bool) -> None:
        """As of `Box`: it was met earlier."""

    def follow(self, *_: object, **__: object) -> int:
        """As of `Box`."""
        raise Unreachable("no route")


class Revoked(Unreached):
    """A place whose link is cut once, and that does not let us in any more."""

    def __init__(self) -> None:
        self.calls = 0

    def follow(self, *_: object, **options: object) -> int:
        """As of `Box`."""
        self.calls += 1
        if self.calls > 1:
            raise Refused("gpu1 does not let us in", hint="see whether your key is still known there")
        cast("Callable[[bytes], None]", options["err"])(b"a word\n")
        raise CutOff("the link ended")


def test_who_is_not_let_in_again_is_told_that_the_run_goes_on() -> None:
    box = Revoked()
    with pytest.raises(Refused, match="gpu1 does not let us in; the run goes on") as caught:
        send(cast("Box", box), ["attach", "digits"])
    assert caught.value.hint == "see whether your key is still known there; then: holdfast attach gpu1:digits"
    assert box.calls == 2


def list_calls(root: str) -> list[int]:
    """The processes that carry out what a desk has sent to a place."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            if any(word.startswith(f"{root}/.agent-") and word.endswith("/hf.py") for word in words):
                found.append(int(pid))
    return found


def is_followed_again(follower: Follower, times: int) -> bool:
    """Whether what followed was begun so many times anew."""
    return follower.err.count(" is followed again") == times


def alike(text: str) -> str:
    """What two looks at the same thing have in common."""
    lines = [line for line in text.splitlines(keepends=True) if not line.strip().startswith(OWN)]
    return AGES.sub("T", "".join(lines))


VERBS = (
    ["show", "digits", "--json"],
    ["logs", "digits"],
    ["stop", "digits"],
    ["attach", "digits"],
)
MORE_VERBS = (
    ["show", "digits"],
    ["logs", "digits", "--json"],
    ["diagnose", "digits"],
    ["queue"],
    ["queue", "ls", "--json"],
    ["gpus"],
    ["sentinel", "digits"],
    ["wait", "digits"],
    ["rm", "--dry-run", "digits"],
)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "verbs", [pytest.param(VERBS, id="few"), pytest.param(MORE_VERBS, id="more", marks=pytest.mark.slow)]
)
def test_what_is_sent_prints_the_same_as_what_is_typed(holdfast: Command, verbs: tuple[list[str], ...]) -> None:
    ended = holdfast("run", "--name", "digits", "--", "sh", "-c", "echo out; echo ü; exit 3")
    assert ended.code == 3
    wrong: list[str] = []
    for words in verbs:
        here, there = holdfast(*words), holdfast(*words, "--on", "loop")
        named = there.out if "--json" in words else there.out.replace("loop:", "").replace(" --on loop", "")
        if here.code != there.code:
            wrong.append(f"{words}: {here.code}, there {there.code}: {there.err}")
        wrong += [
            f"{words}: {line}"
            for line in difflib.unified_diff(alike(here.out).splitlines(), alike(named).splitlines(), n=0)
        ]
    assert wrong == []


@pytest.mark.slow
def test_errors_come_back_with_their_code_and_hints_name_the_place(holdfast: Command) -> None:
    missing = holdfast("show", "loop:nobody")
    assert missing.code == 66
    assert "holdfast ls --on loop" in missing.err
    answer = holdfast("show", "loop:nobody", "--json")
    assert (answer.code, answer.json()["error"]["code"]) == (66, "no_such_run")
    assert "holdfast ls --on loop" in answer.json()["error"]["hint"]
    assert holdfast("queue", "--on", "loop", "nonsense").code == 64
    unknown = holdfast("show", "lop:x")
    assert (unknown.code, "did you mean loop?" in unknown.err) == (66, True)


@pytest.mark.slow
@pytest.mark.requirement("RAIL-13")
def test_words_of_any_kind_arrive(holdfast: Command) -> None:
    odd = "two\nlines 'quoted' \"double\" ! $HOME `x` \\ ü \t"
    ended = holdfast("run", "--name", "odd", "-d", "--", "sleep", "60")
    assert ended.code == 0
    assert holdfast("stop", "loop:odd", "--reason", odd).code == 0
    shown = holdfast("show", "odd", "--json", "--events").json()
    assert odd in [value for event in shown["events"] for value in event.get("data", {}).values()]


HUB_TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.mark.requirement("XPORT-11")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--env", "API_TOKEN=c4n4ry51"), "--env API_TOKEN"),
        ((f"--env=LR={HUB_TOKEN}",), "--env LR"),
        (("--notify-ntfy", f"https://ntfy.sh/{HUB_TOKEN}"), "--notify-ntfy"),
        (("--env", HUB_TOKEN), "--env;"),
        (("--env", "DATA=https://b.example/x?X-Amz-Signature=c4n4ry51c4n4ry51"), "--env DATA"),
        (("--env", "ARGS=--api-key=c4n4ry51"), "--env ARGS"),
        (("--env", "DB_PASSWORD=/c4n4ry51"), "--env DB_PASSWORD"),
        (("--", "train.py", "--api-key", "c4n4ry51"), "argument 2"),
    ],
)
def test_XPORT_11_a_secret_among_the_words_of_a_restart_is_not_sent(words: tuple[str, ...], named: str) -> None:
    """It would be in the command line of a process there before it is refused there."""
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        send(cast("Box", Unreached()), ["restart", "digits", *words])
    assert named in str(caught.value)
    assert "c4n4ry" not in str(caught.value)
    assert HUB_TOKEN not in str(caught.value)
    assert "holdfast secret push gpu1 NAME" in caught.value.hint


@pytest.mark.requirement("XPORT-11")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("curl", "-H", "Authorization: Bearer c4n4ry51c4n4ry51"), "argument 2"),
        (("train.py", "--api-key", "c4n4ry51"), "argument 2"),
        (("sh", "-c", f"HF_TOKEN={HUB_TOKEN} python get.py"), "argument 2"),
    ],
)
def test_XPORT_11_a_secret_among_the_words_of_a_command_beside_a_run_is_not_sent(
    words: tuple[str, ...], named: str
) -> None:
    with pytest.raises(UsageError, match="exec holds what looks like a secret") as caught:
        send(cast("Box", Unreached()), ["exec", "digits", "--", *words])
    assert named in str(caught.value)
    assert "c4n4ry" not in str(caught.value)
    assert HUB_TOKEN not in str(caught.value)
    assert "holdfast secret push gpu1 NAME, and --secret NAME with the run" in caught.value.hint


@pytest.mark.parametrize(
    "words",
    [
        (
            "exec",
            "digits",
            "--",
            "sh",
            "-c",
            'curl -H "Authorization: Bearer $HF_TOKEN" https://x.example/?key=validation',
        ),
        ("restart", "digits", "--secret", "HF_TOKEN", "--notify-smtp-password", "env:SMTP", "--env", "LR=1e-3"),
        ("logs", "digits", "--grep", "token=abcdefgh"),
    ],
)
def test_what_only_names_a_secret_is_sent(words: tuple[str, ...]) -> None:
    with pytest.raises(Unreachable):
        send(cast("Box", Unreached()), words)


@pytest.mark.slow
def test_a_job_that_exits_255_or_by_a_signal_comes_through(holdfast: Command) -> None:
    assert holdfast("run", "--name", "bad", "--", "sh", "-c", "exit 255").code == 255
    assert holdfast("attach", "loop:bad").code == 255
    assert holdfast("run", "--name", "killed", "--", "sh", "-c", "kill -9 $$").code == 137
    assert holdfast("attach", "--on", "loop", "killed").code == 137


@pytest.mark.slow
def test_several_places_are_asked_in_turn_and_the_worst_code_is_told(holdfast: Command, loop: WarmLoop) -> None:
    loop.add("again")
    for name in ("a", "b"):
        holdfast("run", "--name", name, "--", "true")
    done = holdfast("rm", "-y", "loop:a", "again:nobody", "b")
    assert done.code == 66
    assert "no run answers to 'nobody'" in done.err
    assert holdfast("show", "a").code == holdfast("show", "again:b").code == 66
    assert holdfast("rm", "--json", "-y", "loop:a", "again:b").code == 64


@pytest.mark.slow
@pytest.mark.requirement("CKPT-15")
def test_a_job_is_rehearsed_at_a_place_and_leaves_nothing_there(
    holdfast: Command, loop: WarmLoop, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(Path(__file__).parents[2] / "cli" / "payloads" / "rehearsed.py", code)
    (code / "job.yaml").write_text(f"command: ['{sys.executable}', rehearsed.py, good, '40']\n")
    before = sorted(os.listdir(loop.root))
    done = holdfast("drill", "--on", "loop", "--kills", "1", "job.yaml", cwd=code, timeout_s=150 * PATIENCE)
    assert (done.code, "continues exactly" in done.out) == (0, True), done
    assert done.err.startswith("holdfast: first without an interruption\nholdfast: without an interruption: "), done
    left = [name for name in os.listdir(loop.root) if not name.startswith((".agent-", ".code-"))]
    assert set(left) <= set(before)
    here = holdfast("drill", "--no-code", "--", "true")
    assert (here.code, "--no-code is for jobs at a place" in here.err) == (64, True)


@pytest.mark.slow
def test_a_command_that_is_killed_while_it_follows_attaches_when_it_is_typed_again(
    holdfast: Command, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo done"
    words = ("run", "--on", "loop", "--no-code", "--name", "twice", "--", "sh", "-c", code)
    with subprocess.Popen([*ENTRY, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"begun\n"
        first.kill()
    go.touch()
    again = holdfast(*words)
    assert (again.code, again.out) == (0, "begun\ndone\n"), again
    assert "going on with loop:" in again.err
    fresh = holdfast(*words)
    assert (fresh.code, fresh.out, "going on with" in fresh.err) == (0, "begun\ndone\n", False), fresh
    # What a list has of it may be lost: that the end was seen stands in the journal.
    os.unlink(f"{os.environ['XDG_STATE_HOME']}/holdfast/places/loop/runs.tsv")
    assert "going on with" not in holdfast(*words).err
    runs = holdfast("ls", "--all", "--json", "--here").json()["runs"]
    assert [run["name"] for run in runs].count("twice") == 3


@pytest.mark.slow
def test_what_follows_there_may_be_killed_and_the_exit_code_is_still_the_jobs(
    holdfast: Command, loop: WarmLoop, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo done; exit 3"
    follower = Follower(tmp_path, "run", "--on", "loop", "--no-code", "--name", "short", "--", "sh", "-c", code)
    try:
        wait_until(lambda: follower.out == b"begun\n", LONG_S, what=follower.err)
        # What compiles a new bundle has ended.
        wait_until(lambda: len(list_calls(str(loop.root))) == 1, LONG_S, what="one call alone")
        for count in (1, 2):
            # The second at the same place in the output.
            (pid,) = list_calls(str(loop.root))
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(is_followed_again, follower, count), LONG_S, what="another one")
        go.touch()
        assert (follower.end(LONG_S), follower.out) == (3, b"begun\ndone\n"), follower.err
    finally:
        follower.kill()
    # Of a job that was killed it is the job's code, at once.
    killed = holdfast("run", "--on", "loop", "--no-code", "--", "sh", "-c", "kill -9 $$")
    assert (killed.code, "link to" in killed.err) == (137, False), killed


@pytest.mark.slow
def test_an_interrupt_asks_the_run_to_stop(holdfast: Command, tmp_path: Path) -> None:
    with live_run(holdfast) as run:
        run.wait_output("ready")
        out = tmp_path / "out"
        with (
            out.open("wb") as file,
            subprocess.Popen([*ENTRY, "attach", f"loop:{run.run_id}"], stdout=file, stderr=subprocess.PIPE) as attach,
        ):
            wait_until(lambda: b"ready" in out.read_bytes(), what="the output at the desk")
            attach.send_signal(signal.SIGINT)
            _, said = attach.communicate(timeout=LIMIT_S)
        assert attach.returncode == 130
        assert f"asked loop:{run.run_id} to stop" in said.decode()
        assert run.look().over
        assert out.read_bytes() == b"ready\n"


@pytest.mark.slow
def test_term_leaves_and_the_run_goes_on(holdfast: Command, tmp_path: Path) -> None:
    with live_run(holdfast) as run:
        run.wait_output("ready")
        out = tmp_path / "out"
        with (
            out.open("wb") as file,
            subprocess.Popen([*ENTRY, "attach", f"loop:{run.run_id}"], stdout=file, stderr=subprocess.PIPE) as attach,
        ):
            wait_until(lambda: b"ready" in out.read_bytes(), what="the output at the desk")
            attach.send_signal(signal.SIGTERM)
            _, said = attach.communicate(timeout=LIMIT_S)
        assert attach.returncode == 143
        assert f"detached by SIGTERM; loop:{run.run_id} goes on: holdfast attach loop:{run.run_id}" in said.decode()
        assert not run.look().over


@pytest.mark.slow
def test_what_a_desk_says_of_itself_is_not_inherited_by_a_job(
    warm: WarmLoop, holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent from a terminal, which has a width and colours; followed, with a file, with a question that may come."""
    own = ("PLACE", "FOLLOW", "AUTHOR", "ZONE", "ENV_FROM", "FILES", "CONSENT")
    said = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", *(f"HOLDFAST_{name}" for name in own))
    for name in said:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "env").write_text("MINE=yes\n")
    add_place("login", root=str(warm.root), kind="local", env_from="login")
    job = f"env | grep -E '^({'|'.join(said)})=' || echo none"
    assert holdfast("run", "--name", "told", "--", "sh", "-c", job).out == "none\n"
    for attempt, words in enumerate(
        (("loop:told", "-f", "--env-file", "env"), ("loop:told",), ("login:told", "-f")), 2
    ):
        code, text = answer_at_terminal("restart", *words, cwd=tmp_path, answers=[])
        assert code == 0, text
        (run_dir,) = warm.root.glob("*-told-*")
        output = run_dir / f"attempts/{attempt}/output.log"
        wait_until((output.parent / "exit.json").exists, what="the end of the attempt")
        assert output.read_text() == "none\n", words
    assert holdfast("restart", "loop:told", "-f").out == "none\n"
