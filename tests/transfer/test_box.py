"""A place with our bundle on it: found, pushed, proven, called; and every way in which that can fail."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire
from holdfast.model.errors import (
    CutOff,
    InternalError,
    NoInterpreter,
    NoSuchRun,
    NotPermitted,
    StorageError,
    UsageError,
)
from holdfast.model.place import BoxFacts
from holdfast.model.record import replace
from holdfast.transfer.answers import read_answer, read_error
from holdfast.transfer.box import BROKEN_PYTHON
from holdfast.transfer.bundle import bootstrap, hf, receive
from holdfast.transfer.contact import ENTRY
from holdfast.transport.base import Done
from tests.each import each
from tests.transfer.boxes import bundle_of, calls_of, is_used, list_pythons, make_box, pack, remove_tree
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transfer.box import Box

pytestmark = pytest.mark.process

AGENT = f".agent-{os.geteuid()}"

RUN = bootstrap.RUN_SCRIPT
OLD_SAYS = 'echo "holdfast: $0 is Python 3.9.2, and holdfast needs 3.10"'
"""As `hf.py` says it."""

NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs to own files as another account")


@pytest.mark.slow
def test_a_box_that_never_saw_us_is_met_in_two_calls_and_then_costs_one(new_box: Box) -> None:
    facts = new_box.ensure()
    assert [script for script, _ in calls_of(new_box)] == [bootstrap.CONTACT_SCRIPT] * 2
    assert facts.bundle == bundle_of(new_box).name
    assert new_box.ensure() is facts
    assert new_box.run(("--version",), limit_s=LONG_S).out.startswith(b"holdfast ")
    assert len(calls_of(new_box)) == 3


@pytest.mark.slow
def test_BSSH_06_a_box_is_inspected_before_it_is_used(new_box: Box) -> None:
    facts = new_box.ensure()
    assert facts.uid == os.geteuid()
    assert facts.python_version.startswith("3.")
    assert facts.flock == "taken"
    assert facts.pidfd in {"native", "syscall", "none"}
    assert facts.box.boot_id
    assert {disk.path for disk in facts.disks} >= {facts.root, facts.home}
    assert all(disk.free_bytes for disk in facts.disks if disk.type != "unreadable")
    assert "open files" in facts.limits
    assert facts.tools.get("tar", "").endswith("/tar")
    assert facts.clock_ahead_s is not None


@each("ahead_s, said", [(3600.0, "3600 s ahead of"), (-6.2, "6 s behind"), (4.0, "")])
def test_a_clock_that_is_off_is_the_first_of_the_warnings(box: Box, ahead_s: float, said: str) -> None:
    facts = replace(box.ensure(), warnings=("/data: 3 inodes are free",))
    found = box._keep({**wire.encode(facts), "clock_epoch_s": time.time() + ahead_s})
    assert found.warnings == (*([f"its clock is {said} this machine's"] if said else []), *facts.warnings)


def test_another_desk_finds_the_bundle_there(box: Box, box_root: Path) -> None:
    box.ensure()
    other = make_box(box_root)
    other.ensure()
    assert [size for _, size in calls_of(other)] == [0]


@pytest.mark.slow
def test_what_is_pushed_is_private_and_read_only(new_box: Box) -> None:
    new_box.ensure()
    bundle = bundle_of(new_box)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in bundle.rglob("*") if "__pycache__" not in path.parts}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o400}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o500}
    assert stat.S_IMODE(bundle.parent.stat().st_mode) == 0o700
    assert not [path.name for path in bundle.parent.iterdir() if path != bundle]


def test_what_a_start_loads_is_compiled_while_the_desk_goes_on(new_box: Box) -> None:
    new_box.ensure()
    agent = bundle_of(new_box) / "lib/holdfast/agent"
    wait_until(lambda: not is_used(str(agent.parents[2])), what="the end of what follows a push")
    assert list(agent.glob("__pycache__/supervisor_process.*.pyc"))
    assert list(agent.glob("place/__pycache__/submit.*.pyc"))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_every_python_bare_in_the_c_locale(box_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-I -S, without an environment, with UTF-8 and odd characters in the arguments."""
    found = list(list_pythons())
    assert found
    for name in list(os.environ):
        if name not in {"HOME", "TMPDIR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("LC_ALL", "C")
    odd = "ü\n'\"!$HOME `x` \\ \udcff"
    for python in found:
        box = make_box(box_root, python=python)
        assert box.ensure().python_version.startswith(python.rpartition("python")[2])
        done = box.run(("show", odd, "--json"), limit_s=LONG_S)
        assert done.code == 66, done.err
        assert odd.encode("utf-8", "backslashreplace")[:2].decode() in json.loads(done.out)["error"]["message"]
        assert box.run(("gpus", "--json"), limit_s=LONG_S).code == 0


@pytest.mark.slow
def test_a_bundle_that_was_removed_is_pushed_again_by_whatever_is_called(box: Box, box_root: Path) -> None:
    box.ensure()
    pieces: list[bytes] = []

    def remove() -> None:
        remove_tree(box_root / AGENT)

    remove()
    assert box.run(("--version",), limit_s=LONG_S).out.startswith(b"holdfast ")
    remove()
    assert box.follow(("--version",), out=pieces.append, err=pieces.append) == 0
    assert b"".join(pieces).startswith(b"holdfast ")
    remove()
    assert box.entry("probe", limit_s=LONG_S)["root"] == str(box_root)


def test_a_bundle_that_vanishes_while_a_desk_is_away(box: Box, box_root: Path) -> None:
    """A desk that remembers the box notices at its first call."""
    facts = box.ensure()
    remove_tree(box_root / AGENT)
    again = make_box(box_root, facts=facts)
    assert again.run(("--version",), limit_s=LONG_S).code == 0
    assert again.run(("--version",), limit_s=LONG_S).code == 0


@pytest.mark.slow
def test_input_that_can_be_read_once_waits_for_the_bundle(box: Box, box_root: Path) -> None:
    facts = box.ensure()
    remove_tree(box_root / AGENT)
    again = make_box(box_root, facts=facts)

    def once() -> Iterator[bytes]:
        yield b"{}"

    assert again.entry("probe", stdin=once(), limit_s=LONG_S)["schema"] == 1
    scripts = [script for script, _ in calls_of(again)]
    look = bootstrap.LOOK_SCRIPT
    assert scripts == [look, *[bootstrap.CONTACT_SCRIPT] * 2, look, bootstrap.RUN_SCRIPT]


def damage(path: Path, text: bytes) -> None:
    path.parent.chmod(0o700)
    path.unlink()
    path.write_bytes(text)


def test_a_damaged_bundle_is_said_and_replaced(box: Box) -> None:
    box.ensure()
    damage(bundle_of(box) / "lib/holdfast/agent/place/probe.py", b"")
    with pytest.raises(StorageError, match=r"damaged \(lib/holdfast/agent/place/probe.py was changed\)") as caught:
        box.entry("probe", limit_s=LONG_S)
    assert "repeat" in caught.value.hint
    assert box.entry("probe", limit_s=LONG_S)["schema"] == 1


def test_a_command_that_ends_as_our_own_faults_do_costs_no_further_call(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.ensure()
    made: list[str] = []

    def meet() -> tuple[BoxFacts | None, str]:
        made.append("met")
        return box.facts, ""

    for code, said in ((70, b"no card"), (1, b""), (70, b"holdfast: this is a bug in holdfast: KeyError: 1")):
        done = Done(code, b"", said, cut=False)
        monkeypatch.setattr(box.transport, "run", lambda *_, done=done, **__: done)
        monkeypatch.setattr(box, "_meet", meet)
        assert box.run(("attach",), limit_s=LONG_S).code == code
    assert made == ["met"]


def test_a_program_that_is_not_there_is_said_in_words_and_replaced(box: Box) -> None:
    box.ensure()
    package = bundle_of(box) / "lib/holdfast/cli"
    package.parent.chmod(0o700)
    package.rename(bundle_of(box).parent / "away")
    said = bytearray()
    with pytest.raises(StorageError, match=r"damaged \(lib/holdfast/cli/__init__.py is not there\)"):
        box.follow(("--version",), out=said.extend, err=said.extend)
    assert b"cannot be loaded: ModuleNotFoundError" in said
    assert b"Traceback" not in said


@pytest.mark.slow
def test_a_program_that_cannot_be_loaded_is_replaced(box: Box) -> None:
    box.ensure()
    damage(bundle_of(box) / "lib/holdfast/cli/main.py", b"(")
    with pytest.raises(StorageError, match=r"damaged \(lib/holdfast/cli/main.py was changed\)"):
        box.run(("--version",), limit_s=LONG_S)


def test_a_probe_proves_every_file(box: Box) -> None:
    box.ensure()
    readme = bundle_of(box) / "LICENSES/click"
    before = readme.read_bytes()
    damage(readme, b"something else")
    box.probe()
    assert readme.read_bytes() == before


def test_an_interpreter_that_has_gone_is_looked_for_again(box: Box, tmp_path: Path) -> None:
    facts = box.ensure()
    link = tmp_path / "python3"
    box.facts = replace(facts, python=str(link))
    assert box.run(("--version",), limit_s=LONG_S).code == 0
    assert box.facts is not None
    assert box.facts.python != str(link)


def make_script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "exit 127",
        f"case $* in *hf.py*) {OLD_SAYS} >&2; exit 78;; esac; echo $0; echo 3.9.2; exit 9",
        "echo 'Fatal Python error: init_fs_encoding: failed to get the Python codec' >&2; exit 1",
    ],
)
def test_an_interpreter_that_works_no_more_is_looked_for_again(box: Box, tmp_path: Path, text: str) -> None:
    """As after an update of the system's libraries, or where a conda of another version, or half of it, is there."""
    facts = box.ensure()
    broken = replace(facts, python=str(make_script(tmp_path / "python3", text)))
    box.facts = broken
    assert box.run(("--version",), limit_s=LONG_S).out.startswith(b"holdfast ")
    assert [script for script, _ in calls_of(box)] == [RUN, bootstrap.CONTACT_SCRIPT, RUN]
    assert BROKEN_PYTHON[0] in Path(hf.__file__).read_bytes()


@pytest.mark.slow
def test_what_is_followed_finds_another_interpreter_too_and_input_is_sent_once(box: Box, tmp_path: Path) -> None:
    facts = box.ensure()
    broken = replace(facts, python=str(make_script(tmp_path / "python3", "exit 127")))
    pieces: list[bytes] = []
    box.facts = broken
    assert box.follow(("--version",), out=pieces.append, err=pieces.append) == 0
    assert b"".join(pieces).startswith(b"holdfast ")
    box.facts = broken
    assert box.entry("probe", limit_s=LONG_S)["schema"] == 1
    box.facts = broken
    assert box.run(("--version",), stdin=iter([b""]), limit_s=LONG_S).code == 127
    assert box.run(("--version",), limit_s=LONG_S).code == 0


def test_what_ends_like_a_shell_that_starts_nothing_is_not_repeated(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, made = box.ensure(), list[str]()

    def answer(script: str, *_: object, **__: object) -> Done:
        made.append(script)
        return Done(127, b"", b"sh: 1: exit 127 after much work", cut=False)

    monkeypatch.setattr(box.transport, "run", answer)
    monkeypatch.setattr(box, "_meet", lambda: (facts, ""))
    assert box.run(("exec",), limit_s=LONG_S).code == 127
    assert made == [RUN]

    def lose() -> None:
        raise CutOff("cut")

    # Nor is its code lost where the box cannot be looked at.
    monkeypatch.setattr(box, "_meet", lose)
    assert box.run(("exec",), limit_s=LONG_S).code == 127


def test_a_box_without_a_python_for_us_says_what_it_has(
    box_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_script(tmp_path / "python3", "echo $0; echo 3.8.10; exit 9")
    make_script(
        tmp_path / "python3.12",
        "echo $0; echo 3.12.1; echo \"ModuleNotFoundError: No module named '_ctypes'\" >&2; exit 1",
    )
    make_script(tmp_path / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap, "CONTACT_SCRIPT", bootstrap.CONTACT_SCRIPT.replace(bootstrap._PLACES, "/nowhere"))
    with pytest.raises(NoInterpreter) as caught:
        make_box(box_root).ensure()
    message = str(caught.value)
    assert f"{tmp_path}/python3 (Python 3.8.10: too old)" in message
    assert f"{tmp_path}/python3.12 (Python 3.12.1: No module named '_ctypes')" in message
    assert f"{tmp_path}/python3.11 (pyenv: python3.11: command not found)" in message
    assert (caught.value.exit_code, "places.toml" in caught.value.hint) == (78, True)
    assert not (box_root / AGENT).exists()


def test_the_python_of_places_toml_is_the_only_one(box_root: Path, tmp_path: Path) -> None:
    old = make_script(tmp_path / "old", "echo $0; echo 3.9.2; exit 9")
    with pytest.raises(NoInterpreter, match=r"of places\.toml cannot be used: .*old \(Python 3\.9\.2: too old\)"):
        make_box(box_root, python=str(old)).ensure()
    # A shell says that it is not there behind its own name, the nonce of the call, which may begin with a digit.
    gone = make_script(tmp_path / "gone", "echo 1728bc4cd6e2: 1: gone: not found >&2; exit 127")
    with pytest.raises(NoInterpreter, match=r"cannot be used: .*gone \(1728bc4cd6e2: 1: gone: not found\)"):
        make_box(box_root, python=str(gone)).ensure()
    with pytest.raises(NoInterpreter, match=r"/nowhere/python"):
        make_box(box_root, python="/nowhere/python").ensure()


def test_a_python_in_a_usual_place_is_found(
    box_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    there = Path(isolated_environment["HOME"]) / "miniconda3/bin"
    there.mkdir(parents=True)
    python = next(list_pythons())
    make_script(there / "python3", f'exec {python} "$@"')
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        bootstrap, "CONTACT_SCRIPT", bootstrap.CONTACT_SCRIPT.replace("/usr/bin/python3", "/nowhere/python3")
    )
    assert make_box(box_root).ensure().python_version.startswith(python.rpartition("python")[2])


@pytest.mark.parametrize("root", ["relative/runs", "/data/my runs", "/data/../etc", "~other/runs", "/x;y"])
def test_a_root_that_cannot_be_sent_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="root = "):
        make_box(root).ensure()


def test_without_a_home_a_root_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "HOLDFAST_RUNS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    box = make_box(None)
    monkeypatch.setattr(
        bootstrap, "_LOADER", "import os.path\nos.path.expanduser = lambda path: path\n" + bootstrap._LOADER
    )
    with pytest.raises(UsageError, match="no home directory") as caught:
        box.ensure()
    assert "`root`" in caught.value.hint


@pytest.mark.slow
def test_the_usual_root_is_the_one_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    box = make_box(None)
    runs = Path(isolated_environment["HOLDFAST_RUNS"])
    assert box.ensure().root == str(runs)
    monkeypatch.delenv("HOLDFAST_RUNS")
    monkeypatch.delenv("XDG_DATA_HOME")
    home = make_box(None)
    assert home.ensure().root == f"{isolated_environment['HOME']}/.local/share/holdfast/runs"


@pytest.mark.slow
def test_a_home_with_a_space_and_an_umlaut(
    monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    home = Path(isolated_environment["HOME"]) / "Jörg Müller"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("HOLDFAST_RUNS")
    monkeypatch.delenv("XDG_DATA_HOME")
    box = make_box(None)
    assert box.ensure().root == f"{home}/.local/share/holdfast/runs"
    assert box.run(("--version",), limit_s=LONG_S).code == 0


@pytest.mark.slow
def test_two_pushes_at_once_leave_one_bundle(box_root: Path) -> None:
    boxes = [make_box(box_root) for _ in range(4)]
    found: list[BoxFacts] = []
    threads = [threading.Thread(target=lambda box=box: found.append(box.ensure())) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert [path.name for path in bundle_of(boxes[0]).parent.iterdir()] == [found[0].bundle]


@pytest.mark.parametrize("does", ["has replaced it", "moves it out"])
def test_another_desk_that_replaces_a_damaged_bundle_at_the_same_time(
    box: Box, box_root: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    bundle, judge = bundle_of(box), receive._describe_damage
    seen, theirs = list[str](), list[int]()
    damage(bundle / "LICENSES/click", b"something else")

    def look(target: str, name: str) -> str | None:
        found = judge(target, name)
        if found is not None and not seen:
            seen.append(found)
            os.rename(bundle, box_root / "damaged")
            if does == "has replaced it":
                receive.install(pack().data, str(bundle.parent), bundle.name)
                theirs.append(bundle.stat().st_ino)
        return found

    monkeypatch.setattr(receive, "_describe_damage", look)
    receive.install(pack().data, str(bundle.parent), bundle.name)
    assert seen
    assert judge(str(bundle), bundle.name) is None
    assert not theirs or theirs == [bundle.stat().st_ino], "it may be in use"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o500
    assert list(bundle.parent.iterdir()) == [bundle]


@pytest.mark.slow
def test_calls_from_several_threads_push_once(box: Box, box_root: Path) -> None:
    box.ensure()
    remove_tree(box_root / AGENT)
    before = len(calls_of(box))
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(box.run(("--version",), limit_s=LONG_S).code)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 5
    assert len([size for _, size in calls_of(box)[before:] if size > 0]) == 1


@NOT_ROOT
def test_a_directory_of_somebody_else_in_the_way_is_named(box_root: Path) -> None:
    (box_root / AGENT).mkdir()
    os.chown(box_root / AGENT, 12345, -1)
    with pytest.raises(NotPermitted) as caught:
        make_box(box_root).ensure()
    assert f"{box_root}/{AGENT} belongs to uid 12345" in str(caught.value)
    assert "`root`" in caught.value.hint


@pytest.mark.slow
@NOT_ROOT
def test_accounts_share_a_root_that_is_sticky_without_an_administrator(box_root: Path, new_box: Box) -> None:
    """The first one's directories are none that the second one needs; the root itself is root's, as of /scratch."""
    box_root.chmod(0o1777)
    (box_root / ".agent-12345").mkdir(mode=0o700)
    os.chown(box_root / ".agent-12345", 12345, 12345)
    assert new_box.run(("--version",), limit_s=LONG_S).code == 0
    found = bundle_of(new_box)
    assert (found.parent, stat.S_IMODE(found.parent.stat().st_mode)) == (box_root / AGENT, 0o700)


@NOT_ROOT
def test_nothing_of_another_account_is_run_that_took_the_place_of_our_directory(
    box: Box, box_root: Path, tmp_path: Path
) -> None:
    """As after a reboot that emptied a sticky /tmp: what it made leads to a directory of ours where it may write."""
    box_root.chmod(0o1777)
    remove_tree(box_root / AGENT)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "hf.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert box.facts is not None
    (box_root / AGENT).mkdir()
    (box_root / AGENT / box.facts.bundle).symlink_to(tmp_path / "shared")
    os.chown(box_root / AGENT, 12345, 12345)
    with pytest.raises(NotPermitted, match="belongs to uid 12345"):
        box.run(("--version",), limit_s=LONG_S)
    assert not (tmp_path / "ran").exists()


def test_a_bundle_that_others_came_to_reach_is_not_run(box: Box, box_root: Path) -> None:
    """Looked at on every call, not only when it is pushed."""
    box.ensure()
    box_root.chmod(0o777)
    done = box.run(("ls",), limit_s=LONG_S)
    assert (done.code, done.out) == (77, b"")
    assert f"{box_root} can be written by others" in done.err.decode()
    with pytest.raises(NotPermitted, match="can be written by others"):
        box.entry("probe", limit_s=LONG_S)


def test_a_file_where_the_root_should_be(box_root: Path) -> None:
    (box_root / "runs").write_text("")
    with pytest.raises(StorageError, match="Not a directory") as caught:
        make_box(box_root / "runs").ensure()
    assert "`root`" in caught.value.hint


def test_a_root_that_cannot_be_entered_is_told_with_its_path(box: Box, box_root: Path) -> None:
    """Seen below another account's directory of mode 0700: a traceback there, and here "no answer that can be read"."""
    (box_root / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match=f"{box_root}/loop/runs.*: Too many levels of symbolic links") as caught:
        make_box(box_root / "loop" / "runs").ensure()
    assert "`root`" in caught.value.hint

    # A network file system that lost it, by the time that a call is made.
    lost = b'def describe_weakness(path):\n    raise OSError(116, "Stale file handle", path)\n'
    damage(bundle_of(box) / "lib/holdfast/host/files/ownership.py", lost)
    done = box.run(("ls",), limit_s=LONG_S)
    assert (done.code, b"Stale file handle" in done.err, b"`root`" in done.err) == (74, True, True), done
    with pytest.raises(StorageError, match="Stale file handle"):
        box.entry("poll", limit_s=LONG_S)


@NOT_ROOT
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=1m", "No space left on device"),
        ("size=64m,nr_inodes=64", "no inode is left"),
        ("ro", "Read-only file system"),
    ],
)
def test_a_disk_that_takes_nothing(box_root: Path, options: str, words: str) -> None:
    disk = box_root / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "none", disk], check=False)
    if mounted.returncode != 0:
        pytest.skip("no right to mount")
    try:
        with pytest.raises(StorageError, match=words) as caught:
            make_box(disk).ensure()
        assert "`root`" in caught.value.hint
        left = [path for path in disk.rglob("*") if path.name != AGENT]
        assert left == []
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_what_a_killed_push_left_is_swept(new_box: Box, box_root: Path) -> None:
    base = box_root / AGENT
    base.mkdir(mode=0o700)
    for name in (".new-0123456789abcdef-1-a", ".new-0123456789abcdef-2-b"):
        (base / name / "lib").mkdir(parents=True)
        (base / name / "lib").chmod(0o500)
    os.utime(base / ".new-0123456789abcdef-1-a", (1, 1))
    new_box.ensure()
    assert {path.name for path in base.iterdir()} == {".new-0123456789abcdef-2-b", bundle_of(new_box).name}


def test_a_stream_that_was_cut_leaves_nothing(new_box: Box, box_root: Path) -> None:
    class Half:
        hash = new_box._get_bundle().hash
        data = new_box._get_bundle().data[:500_000]

    new_box._bundle = Half()  # type: ignore[assignment]
    with pytest.raises(StorageError, match="did not arrive"):
        new_box.ensure()
    base = box_root / AGENT
    assert not base.exists() or list(base.iterdir()) == []


def test_the_error_of_an_entry_is_raised_here(box: Box) -> None:
    box.ensure()
    done = box.run(("show", "nobody", "--json"), limit_s=LONG_S)
    with pytest.raises(NoSuchRun, match="nobody") as caught:
        read_answer("gpu1", "show", done)
    assert caught.value.details["place"] == "gpu1"


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"7", b"\xff{"])
def test_an_answer_that_is_none_is_said_and_no_fault_of_the_desk(text: bytes) -> None:
    with pytest.raises(InternalError, match="gave no answer that can be read"):
        read_answer("gpu1", "poll", Done(0, text, b""))


def test_what_a_box_says_of_an_error_is_bounded_and_cannot_steer_a_terminal() -> None:
    error = read_error(
        {
            "code": "storage",
            "message": "\x1b[2Jfull\nof " + "x" * 100_000,
            "hint": "\x07",
            "details": {"again": True, "place": "other", "deep": [[[[["x"]]]]], "\x1b": "\x1b", "long": ["y"] * 1000},
        },
        "gpu1",
    )
    assert isinstance(error, StorageError)
    assert str(error).startswith("\\x1b[2Jfull\nof xxx")
    assert len(str(error)) < 10_000
    assert error.hint == "\\x07"
    assert {name: error.details[name] for name in ("again", "place", "deep", "\\x1b")} == {
        "again": True,
        "place": "gpu1",
        "deep": [[[None]]],
        "\\x1b": "\\x1b",
    }
    assert len(error.details["long"]) == 200  # type: ignore[arg-type]


@pytest.mark.slow
def test_who_knows_the_box_does_not_wait_for_another_who_meets_it(box: Box) -> None:
    """A stop that is asked for while the bundle is mended, which may take minutes."""
    facts = box.ensure()
    with box._meeting:
        assert box.ensure() is facts


def test_the_place_is_told_and_more_environment(box: Box) -> None:
    """The command there names the place, and its lines are as wide as the desk's terminal."""
    box.ensure()
    unknown = box.run(("show", "nothing"), limit_s=LONG_S)
    assert (unknown.code, b"holdfast ls --on gpu1" in unknown.err) == (66, True), unknown.err
    shown = [box.run(("explain", "U8"), env={"COLUMNS": width}, limit_s=LONG_S).out for width in ("60", "90")]
    widest = [max(len(line) for line in out.decode().splitlines()) for out in shown]
    assert 50 < widest[0] <= 60 < widest[1] <= 90, shown


def test_an_entry_is_not_told_the_place(box: Box) -> None:
    """A job that it starts would inherit the variable."""
    facts = box.ensure()

    def list_told(*argv: str) -> dict[str, str]:
        words = box._build_words(facts, argv, {"MINE": "yes"}, "mark")
        told: dict[str, str] = json.loads(base64.b64decode("".join(words[words.index("mark") + 1 :])))["env"]
        return told

    assert list_told("ls") == {"HOLDFAST_PLACE": "gpu1", "MINE": "yes"}
    assert list_told(ENTRY, "submit") == {"MINE": "yes"}
