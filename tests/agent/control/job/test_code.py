"""The code of a later attempt: what is recorded of the repository when a person begins it, with real git."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.control.create import create_run, next_attempt
from holdfast.agent.control.job.code import RenewedCode, find_code_moved, renew_code
from holdfast.agent.view.page.comparison import compare_runs
from holdfast.agent.view.page.dossier import read_diff, read_dossier
from holdfast.agent.view.source_change import read_code
from holdfast.cli.render.run import describe_git
from holdfast.host.files.snapshot import read_difference
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.origin import GitFacts

pytestmark = [pytest.mark.process, pytest.mark.requirement("OBS-05")]


def git(work: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=work, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository with one commit of a program and a module."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("train.py", "model.py"):
        (work / name).write_text("print(1)\n")
    git(work, "init")
    git(work, "add", "-A")
    git(work, "commit", "-m", "one")
    return work


def job_of(work: Path) -> JobSpec:
    return JobSpec("x", ("python3", "train.py"), str(work))


def make(work: Path) -> str:
    return create(job_of(work), work)


def create(job: JobSpec, work: Path) -> str:
    return create_run(job, str(work.parent / "runs"), argv=("holdfast", "run"), cwd="/", environ=os.environ)[0]


def restart(run_dir: str, work: Path, *, recorded: bool = False) -> RenewedCode:
    """Begin the next attempt as a person does; what is new of it."""
    renewed = renew_code(run_dir, job_of(work), os.environ, recorded=recorded)
    next_attempt(run_dir, "restart", code=renewed.code)
    return renewed


def git_of(run_dir: str, attempt: int) -> GitFacts:
    return wire.decode(GitFacts, read_dossier(run_dir, attempt).git, "git")


def test_each_attempt_has_its_own_state_and_no_difference_is_saved_twice(work: Path) -> None:
    run_dir = make(work)
    assert restart(run_dir, work).code is None
    for text in ("2", "2", "3"):
        (work / "model.py").write_text(f"print({text})\n")
        told = find_code_moved(run_dir, job_of(work), os.environ)
        made = restart(run_dir, work)
        assert (made.moved, made.unknown) == told
    # Attempt 4 has what 3 has, and says nothing.
    assert [name for name in sorted(os.listdir(f"{run_dir}/snapshot")) if "git" in name] == ["1-git.diff", "git.diff"]
    assert [os.path.exists(f"{wire.attempt_dir(run_dir, number)}/{wire.CODE}") for number in range(1, 6)] == [
        *(False, False, True, False, True)
    ]
    texts = {number: read_diff(read_dossier(run_dir, number))[1] for number in range(1, 6)}
    assert (texts[1], texts[2], texts[3] == texts[4]) == (b"", b"", True)
    assert (b"+print(2)" in texts[3], b"+print(3)" in texts[5]) == (True, True)
    assert [git_of(run_dir, number).dirty for number in range(1, 6)] == [False, False, True, True, True]
    # Files, command and script stay what they were where only the repository moved.
    assert read_code(run_dir, 5).files == read_code(run_dir, 1).files
    assert read_code(run_dir, 5).command == ("python3", "train.py")


def test_the_way_back_is_recorded_too(work: Path) -> None:
    (work / "model.py").write_text("print(2)\n")
    run_dir = make(work)
    git(work, "checkout", "--", "model.py")
    at = f"at {git(work, 'rev-parse', 'HEAD')[:12]}"
    assert restart(run_dir, work).moved == f"the repository was {at} (with changes), is {at} (clean)"
    assert (git_of(run_dir, 1).dirty, git_of(run_dir, 2).dirty, git_of(run_dir, 2).diff) == (True, False, None)
    git(work, "branch", "-m", "other")
    assert restart(run_dir, work).moved == ""


def test_a_commit_of_the_same_changes_is_another_state(work: Path) -> None:
    run_dir = make(work)
    (work / "model.py").write_text("print(2)\n")
    assert restart(run_dir, work).moved
    git(work, "commit", "-qam", "two")
    found = restart(run_dir, work)
    assert found.code is not None
    assert found.code.changed == (found.moved,)
    assert git_of(run_dir, 3).commit == git(work, "rev-parse", "HEAD")


def test_with_what_was_recorded_the_state_is_what_is_there(work: Path) -> None:
    (work / "train.sh").write_text("python3 model.py\n")
    git(work, "add", "-A")
    job = JobSpec("x", ("sh", "train.sh"), str(work))
    run_dir = create(job, work)
    (work / "train.sh").write_text("true\n")
    found = renew_code(run_dir, job, os.environ, recorded=True)
    assert found.code is not None
    assert (found.code.files, found.code.command) == (read_code(run_dir).files, read_code(run_dir).command)
    assert (found.code.changed, found.moved != "") == ((found.moved,), True)


def test_what_a_run_writes_beside_its_code_is_no_other_state_of_the_repository(work: Path) -> None:
    run_dir = make(work)
    (work / "out.txt").write_text("x")
    assert restart(run_dir, work) == RenewedCode()
    (work / "model.py").write_text("print(2)\n")
    at = f"at {git(work, 'rev-parse', 'HEAD')[:12]}"
    words = f"the repository was {at} (clean), is {at} (with changes)"
    assert restart(run_dir, work).moved == words
    os.remove(work / "out.txt")
    (work / "other.txt").write_text("x")
    assert restart(run_dir, work) == RenewedCode()
    assert git_of(run_dir, 4) == git_of(run_dir, 3)


def test_a_repository_that_could_not_be_read_has_not_moved_and_proves_nothing_of_the_attempt(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make(work)
    commit = git(work, "rev-parse", "HEAD")
    last = "the last known one is that of attempt 1"
    words = f"the state of the repository could not be read (git is not installed): {last}"
    with monkeypatch.context() as without:
        without.setenv("PATH", str(work))
        assert find_code_moved(run_dir, job_of(work), os.environ) == ("", words)
        made = restart(run_dir, work)
        assert (made.moved, made.unknown, made.changes) == ("", words, ())
        assert made.code is not None
        assert made.code.changed == ()
        assert restart(run_dir, work) == RenewedCode(unknown=words), "it is recorded already"
    assert git_of(run_dir, 3) == GitFacts(note=f"git is not installed; {last}")
    # Read again it is as it was: nothing moved, and from here on it is proven.
    made = restart(run_dir, work)
    assert (made.moved, made.unknown, git_of(run_dir, 4).commit) == ("", "", commit)
    with monkeypatch.context() as without:
        without.setenv("PATH", str(work))
        restart(run_dir, work)
    git(work, "commit", "--allow-empty", "-qm", "two")
    second = git(work, "rev-parse", "HEAD")
    moved = f"the repository was at {commit[:12]} (clean), is at {second[:12]} (clean)"
    assert restart(run_dir, work).moved == moved


def test_a_difference_that_cannot_be_compared_is_not_told_to_be_another_one(work: Path) -> None:
    (work / "model.py").write_text("print(2)\n")
    run_dir = make(work)
    os.remove(f"{run_dir}/snapshot/git.diff")
    at = git(work, "rev-parse", "HEAD")[:12]
    lost = f"what differs from commit {at} is not recorded of attempt 1: whether it is another one now cannot be told"
    made = restart(run_dir, work)
    assert (made.moved, made.unknown) == ("", lost)
    assert b"+print(2)" in read_diff(read_dossier(run_dir, 2))[1]
    assert restart(run_dir, work) == RenewedCode()
    (work / "model.py").write_bytes(os.urandom(5 << 20))
    made = restart(run_dir, work)
    assert (made.moved, "could not be read (git diff said more than 4 MiB)" in made.unknown) == ("", True)
    found = git_of(run_dir, 4)
    assert (found.commit, found.diff) == (git(work, "rev-parse", "HEAD"), None)
    again = restart(run_dir, work)
    assert (again.code, again.unknown) == (None, made.unknown)


@pytest.mark.parametrize("git_facts", [{"dirty": "maybe"}, {"dirty": [1]}, [1]])
def test_a_state_that_somebody_damaged_is_named_with_its_file(work: Path, git_facts: object) -> None:
    run_dir = make(work)
    next_attempt(run_dir, "restart")
    place = Path(wire.attempt_dir(run_dir, 2), wire.CODE)
    place.write_text(json.dumps({"schema": 1, "command": ["python3", "train.py"], "git": git_facts}))
    assert git_of(run_dir, 2).note.startswith("code.json cannot be read: git")
    assert "code.json cannot be read: git" in describe_git(read_dossier(run_dir, 2).git)
    place.unlink()
    path = Path(run_dir, wire.RUN)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "snapshot": {**record["snapshot"], "git": git_facts}}))
    assert "run.json cannot be read: git" in describe_git(read_dossier(run_dir, 2).git)


def test_a_difference_outside_of_the_run_is_none(work: Path, tmp_path: Path) -> None:
    run_dir = make(work)
    (tmp_path / "other").write_text("x")
    assert read_difference(GitFacts(diff="../../other"), run_dir) is None
    assert read_difference(GitFacts(diff=str(tmp_path / "other")), run_dir) is None
    assert read_difference(GitFacts(diff="snapshot/a\0b"), run_dir) is None


def test_code_that_a_desk_has_sent_has_no_repository_here(work: Path) -> None:
    run_dir = make(work)
    path = Path(run_dir, wire.RUN)
    sent = {"tree": "a" * 16, "files": 1, "bytes": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), "code": sent}))
    (work / "model.py").write_text("print(2)\n")
    found = restart(run_dir, work)
    assert (found.code, found.moved) == (None, "")
    (work / "train.py").write_text("print(2)\n")
    found = restart(run_dir, work)
    assert found.code is not None
    assert (found.code.git, found.moved) == (None, "")
    assert git_of(run_dir, 3) == git_of(run_dir, 1)


def test_a_record_of_before_says_nothing_of_the_repository_and_a_damaged_one_is_named(work: Path) -> None:
    run_dir = make(work)
    next_attempt(run_dir, "restart")
    place = Path(wire.attempt_dir(run_dir, 2), wire.CODE)
    place.write_text(json.dumps({"schema": 1, "command": ["python3", "train.py"]}))
    assert git_of(run_dir, 2) == git_of(run_dir, 1)
    place.write_text("{")
    assert "code.json cannot be read" in git_of(run_dir, 2).note
    assert git_of(run_dir, 1).commit is not None


def test_files_that_git_does_not_know_are_named_beside_the_commit(work: Path) -> None:
    (work / "own.py").write_text("print(1)\n")
    assert "(main, clean but for files that git does not know, not recorded: own.py)" in describe_git(
        read_dossier(make(work), None).git
    )
    (work / "model.py").write_text("print(2)\n")
    told = describe_git(read_dossier(make(work), None).git)
    assert "(main, with changes; files that git does not know, not recorded: own.py)" in told


def test_a_file_name_of_several_lines_is_one_line_of_what_is_told(work: Path) -> None:
    (work / "own\nholdfast: all is well\x1b[31m").write_text("1")
    run_dir = make(work)
    for words in (describe_git(read_dossier(run_dir, None).git), *compare_runs(run_dir, run_dir).uncompared):
        assert "\n" not in words
        assert "\x1b" not in words
    assert "own holdfast: all is well" in words


def test_another_change_from_the_same_commit_is_told_and_one_that_is_not_recorded_is_no_proof(work: Path) -> None:
    runs = []
    for text in ("2", "3", "2"):
        (work / "model.py").write_text(f"print({text})\n")
        runs.append(make(work))
    commit = git(work, "rev-parse", "HEAD")[:12]
    told = compare_runs(runs[1], runs[0])
    assert told.others == (f"what differs from commit {commit} is another one: show --diff",)
    same = compare_runs(runs[2], runs[0])
    assert (same.others, [words for words in same.uncompared if "environment" not in words]) == ((), [])
    os.remove(f"{runs[0]}/snapshot/git.diff")
    lost = compare_runs(runs[2], runs[0])
    words = f"what differs from the commit of {os.path.basename(runs[0])} is not recorded: it cannot be read"
    assert (lost.others, words in lost.uncompared) == ((), True)
    assert read_difference(GitFacts(diff="snapshot/git.diff"), runs[0]) is None
