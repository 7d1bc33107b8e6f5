"""A run directory is made by one process only, complete before anything starts, and holds no secret."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.control.create import create_run, next_attempt
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.source_change import find_change
from holdfast.core.job.job_hash import hash_job
from holdfast.host.files import files
from holdfast.host.files.snapshot import parse_status
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NoSuchRun, NotPermitted, StorageError, UsageError
from holdfast.model.ids import is_run_id
from holdfast.model.job import JobSpec, Notify
from holdfast.model.origin import RunOrigin
from holdfast.model.record import replace
from holdfast.model.run import Created, RunState
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process

Make = Callable[..., str]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def make(tmp_path: Path, work: Path) -> Make:
    def make_run(*command: str, **fields: object) -> str:
        run_id = fields.pop("run_id", None)
        spec = replace(JobSpec("t", command or ("true",), str(work)), **fields)  # type: ignore[arg-type]
        assert run_id is None or isinstance(run_id, str)
        root = str(tmp_path / "runs")
        return create_run(spec, root, argv=["holdfast", "run"], cwd="/", environ=os.environ, run_id=run_id)[0]

    return make_run


def origin_of(run_dir: str) -> RunOrigin:
    return wire.from_bytes(RunOrigin, files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)


def git(work: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=work, check=True, capture_output=True)


@pytest.fixture
def repository(work: Path) -> Path:
    (work / "train.py").write_text("print(1)\n")
    git(work, "init")
    git(work, "add", "-A")
    git(work, "commit", "-m", "one")
    return work


def test_a_new_run_is_complete(make: Make, tmp_path: Path) -> None:
    run_dir = make("true", seed=7)
    origin = origin_of(run_dir)
    assert is_run_id(origin.run_id)
    assert run_dir == str(tmp_path / "runs" / origin.run_id)
    assert os.stat(run_dir).st_mode & 0o777 == os.stat(tmp_path / "runs").st_mode & 0o777 == 0o700
    assert sorted(os.listdir(run_dir)) == [
        "artifacts",
        "attempts",
        "checkpoints",
        "handbook.md",
        "run.json",
        "snapshot",
    ]
    assert (origin.uid, origin.host, origin.snapshot.seed) == (os.geteuid(), os.uname().nodename, 7)
    assert origin.job_sha256 == hash_job(origin.job)
    state = wire.from_bytes(RunState, files.read_bytes(f"{run_dir}/attempts/1/state.json"), "state")
    assert (state.run_id, state.attempt, state.state, state.supervisor) == (origin.run_id, 1, Created(), None)


@pytest.mark.requirement("PROC-14")
def test_nobody_sees_a_run_or_an_attempt_before_it_is_whole(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a front end that was killed before run.json left a run that nobody could read, for ever."""
    rename, watched, seen = os.rename, tmp_path / "runs", list[list[str]]()

    def look_first(source: str, target: str) -> None:
        seen.append([name for name in os.listdir(watched) if not name.startswith(".")])
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_first)
    run_dir = make("true")
    assert len(seen) > 1
    assert not any(seen)
    watched = Path(run_dir, wire.ATTEMPTS)
    seen.clear()
    assert next_attempt(run_dir, "restart") == 2
    assert seen
    assert all(names == ["1"] for names in seen)


def test_run_json_has_the_job_under_job(make: Make) -> None:
    stored = wire.parse_object(files.read_bytes(f"{make('echo', 'a b', '$x')}/run.json"), "run.json")
    assert stored["schema"] == 1
    assert wire.decode(JobSpec, stored["job"]).command == ("echo", "a b", "$x")


@pytest.mark.slow
@pytest.mark.requirement("RAIL-13", "B-16")
def test_RAIL_13_arguments_survive_the_record(make: Make) -> None:
    pieces = [
        "",
        " ",
        "a b",
        "'",
        '"',
        ";",
        "$HOME",
        "|",
        "\n",
        "\\",
        "`id`",
        "é",
        "\udcff",
        "*",
        "-",
        "&&",
        "\t",
        "{}",
    ]
    draw = random.Random(7)
    for _ in range(200):
        command = ("echo", *("".join(draw.choices(pieces, k=3)) for _ in range(4)))
        assert origin_of(make(*command)).job.command == command


@pytest.mark.requirement("RAIL-08")
def test_RAIL_08_two_starts_in_one_second_differ(make: Make) -> None:
    made = {make() for _ in range(20)}
    assert len(made) == 20


@pytest.mark.requirement("RAIL-08")
def test_RAIL_08_a_preset_id_that_exists_is_refused(make: Make) -> None:
    run_id = "20261120-104501-t-3fa2"
    run_dir = make(run_id=run_id)
    before = files.read_bytes(f"{run_dir}/run.json")
    with pytest.raises(UsageError, match="exists already"):
        make("false", run_id=run_id)
    assert files.read_bytes(f"{run_dir}/run.json") == before
    with pytest.raises(UsageError, match="is not a run id"):
        make(run_id="../../etc")


@pytest.mark.gotcha("U27")
@pytest.mark.requirement("OBS-05")
def test_OBS_05_config_entry_and_lock_are_copied_with_their_hashes(make: Make, work: Path) -> None:
    contents = {"train.py": b"print(1)\n", "c.yaml": b"lr: 0.1\n", "uv.lock": b"version = 1\n"}
    for name, data in contents.items():
        (work / name).write_bytes(data)
    run_dir = make("python3", "-u", "train.py", "--lr", "1", config=str(work / "c.yaml"))
    copies = {copy.role: copy for copy in origin_of(run_dir).snapshot.files}
    assert set(copies) == {"config", "entry", "lock"}
    for name, data in contents.items():
        copy = next(copy for copy in copies.values() if copy.source == str(work / name))
        assert copy.sha256 == hashlib.sha256(data).hexdigest()
        assert Path(run_dir, copy.copy or "").read_bytes() == data
        assert Path(run_dir, copy.copy or "").stat().st_mode & 0o222 == 0


@pytest.mark.requirement("OBS-05", "FAIL-16")
@pytest.mark.parametrize(
    "command",
    [
        ("accelerate", "launch", "--config_file", "acc.yaml", "train.py"),
        ("python3", "-I", "wrap.py", "acc.yaml", "train.py", "train.py"),
        ("bash", "run.sh", "train.py"),
    ],
)
def test_OBS_05_scripts_behind_a_launcher_are_recorded_and_compared(
    make: Make, work: Path, command: tuple[str, ...]
) -> None:
    """Seen: a changed training script was run by the next attempt as the same code, behind the launcher's own file."""
    for name in ("acc.yaml", "wrap.py", "run.sh", "train.py"):
        (work / name).write_text(f"# {name}\n")
    run_dir = make(*command, "data.bin", "none.py")
    sources = [copy.source for copy in origin_of(run_dir).snapshot.files]
    assert sources.count(str(work / "train.py")) == 1
    assert len(sources) == 2
    assert find_change(run_dir) == ""
    (work / "train.py").write_text("# changed\n")
    assert find_change(run_dir) == f"{work}/train.py was changed"


def test_a_command_that_names_many_scripts_has_some_recorded(make: Make, work: Path) -> None:
    names = [f"{number}.sh" for number in range(40)]
    for name in names:
        (work / name).write_text("\n")
    assert len(origin_of(make("cat", *names)).snapshot.files) == 17


@pytest.mark.requirement("OBS-05")
def test_OBS_05_a_dirty_repository_is_saved_as_a_difference(make: Make, repository: Path) -> None:
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").write_text("x\n")
    run_dir = make("python3", "train.py")
    facts = origin_of(run_dir).snapshot.git
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    assert facts.commit == head.stdout.strip()
    assert (facts.branch, facts.dirty, facts.untracked, facts.note) == ("main", True, ("new.py",), "")
    git(repository, "checkout", "--", "train.py")
    git(repository, "apply", f"{run_dir}/{facts.diff}")
    assert (repository / "train.py").read_text() == "print(2)\n"


def test_a_clean_repository_has_no_difference(make: Make, repository: Path) -> None:
    facts = origin_of(make()).snapshot.git
    assert (facts.dirty, facts.diff, facts.note) == (False, None, "")


def test_a_repository_without_a_commit_is_stated(make: Make, work: Path) -> None:
    git(work, "init")
    (work / "a.py").write_text("")
    facts = origin_of(make()).snapshot.git
    assert (facts.commit, facts.dirty, facts.diff) == (None, True, None)


def test_no_repository_and_no_git_are_stated(make: Make, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin_of(make()).snapshot.git.note == "not inside a git repository"
    git(work, "init")
    monkeypatch.setenv("PATH", str(work))
    assert origin_of(make()).snapshot.git.note == "git is not installed"


def test_settings_of_the_repository_start_no_program(make: Make, repository: Path) -> None:
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/sprung\ncat >/dev/null\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    git(repository, "config", "diff.external", str(trap))
    git(repository, "config", "core.pager", str(trap))
    (repository / "train.py").write_text("print(3)\n")
    assert origin_of(make()).snapshot.git.dirty is True
    assert not (repository / "sprung").exists()


def test_a_large_or_strange_file_is_not_copied(make: Make, work: Path) -> None:
    (work / "big.py").write_bytes(b"#" * (1024**2 + 1))
    os.mkfifo(work / "pipe")
    big = origin_of(make("python3", "big.py")).snapshot.files[0]
    assert (big.copy, big.size, big.note) == (None, 1024**2 + 1, "larger than 1 MiB: hashed, not copied")
    config = origin_of(make("true", config=str(work / "pipe"))).snapshot.files[0]
    assert config.note == "not a regular file"
    missing = origin_of(make("true", config=str(work / "none"))).snapshot.files[0]
    assert missing.note == "not read: No such file or directory"


@pytest.mark.requirement("PROC-20")
@pytest.mark.parametrize("direct", [True, False])
def test_PROC_20_a_shell_script_runs_from_its_copy(make: Make, work: Path, direct: bool) -> None:
    script = work / "job.sh"
    script.write_text("#!/bin/bash -e\nread _ < gate\necho first $1\n")
    script.chmod(0o755)
    os.mkfifo(work / "gate")
    run_dir = make("./job.sh" if direct else "bash", *(() if direct else ("-u", "job.sh")), "arg")
    origin = origin_of(run_dir)
    copy = f"{run_dir}/snapshot/entry/job.sh"
    assert origin.job.command == (("/bin/bash", "-e", copy, "arg") if direct else ("bash", "-u", copy, "arg"))
    assert origin.snapshot.script is not None
    assert origin.snapshot.script.argv[-1] == "arg"
    child = subprocess.Popen(origin.job.command, cwd=work, stdout=subprocess.PIPE, text=True)
    gate = os.open(work / "gate", os.O_WRONLY)
    with script.open("r+") as file:
        file.write("#!/bin/bash -e\nread _ < gate\necho edited\necho injected\n")
    os.write(gate, b"\n")
    os.close(gate)
    assert child.communicate(timeout=LIMIT_S)[0] == "first arg\n"


def test_a_script_that_nobody_may_execute_is_no_program_by_its_copy(make: Make, work: Path) -> None:
    (work / "job.sh").write_text("#!/bin/sh\necho ran\n")
    origin = origin_of(make("./job.sh"))
    assert (origin.job.command, origin.snapshot.script) == (("./job.sh",), None), "as a shell: permission denied"


@pytest.mark.requirement("PROC-20")
def test_PROC_20_a_script_that_asks_for_its_place_stays_there(make: Make, work: Path) -> None:
    (work / "job.sh").write_text('cd "$(dirname "$0")"\n')
    origin = origin_of(make("bash", "job.sh"))
    assert origin.job.command == ("bash", "job.sh")
    assert origin.snapshot.script is not None
    assert origin.snapshot.script.copy is None
    assert "$0" in origin.snapshot.script.note


def test_python_programs_keep_their_path(make: Make, work: Path) -> None:
    (work / "train.py").write_text("#!/usr/bin/env python3\n")
    (work / "train.py").chmod(0o755)
    assert origin_of(make("./train.py")).job.command == ("./train.py",)
    assert origin_of(make("python3", "train.py")).snapshot.script is None


@pytest.mark.requirement("OBS-04")
@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("t", "--api-key", "verysecret")},
        {"env": {"HF_TOKEN": "verysecret"}},
        {"notify": Notify(webhook="https://hooks.slack.com/services/T0/B0/verysecret")},
    ],
)
def test_OBS_04_a_job_with_a_secret_is_refused_without_a_trace(
    tmp_path: Path, work: Path, fields: dict[str, object]
) -> None:
    spec = replace(JobSpec("t", ("true",), str(work)), **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="looks like a secret") as caught:
        create_run(spec, str(tmp_path / "runs"), argv=[], cwd="/", environ=os.environ)
    assert "verysecret" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.requirement("OBS-04")
def test_OBS_04_no_copy_holds_a_secret(make: Make, repository: Path) -> None:
    secret = "hf_" + "abCD" * 9
    (repository / "c.yaml").write_text(f"hub:\n  token: hunter22\n  other: {secret}\n")
    (repository / "train.py").write_text(f'api_key = "verysecret"\nx = "{secret}"\n')
    (repository / "requirements.txt").write_text("x @ https://me:" + "pw12345@example.org/x.whl\n")
    run_dir = make("python3", "train.py", config=str(repository / "c.yaml"))
    stored = b"".join(path.read_bytes() for path in Path(run_dir).rglob("*") if path.is_file())
    for text in ("hunter22", secret, "verysecret", "pw12345"):
        assert text.encode() not in stored
    assert all(copy.redacted for copy in origin_of(run_dir).snapshot.files)


def test_a_script_with_a_secret_is_not_run_from_a_copy_without_it(make: Make, work: Path) -> None:
    (work / "job.sh").write_text("export HF_TOKEN=verysecret\necho $HF_TOKEN\n")
    origin = origin_of(make("bash", "job.sh"))
    assert origin.job.command == ("bash", "job.sh")
    assert origin.snapshot.script is not None
    assert origin.snapshot.script.copy is None


@pytest.mark.requirement("POST-10")
def test_POST_10_each_attempt_has_its_own_directory(make: Make) -> None:
    run_dir = make()
    Path(run_dir, "attempts/1/output.log").write_text("kept")
    assert [next_attempt(run_dir, "restart"), next_attempt(run_dir, "retry")] == [2, 3]
    assert sorted(os.listdir(f"{run_dir}/attempts")) == ["1", "2", "3"]
    assert Path(run_dir, "attempts/1/output.log").read_text() == "kept"
    state = wire.from_bytes(RunState, files.read_bytes(f"{run_dir}/attempts/3/state.json"), "state")
    assert (state.attempt, state.state) == (3, Created())


def test_concurrent_attempts_get_different_numbers(make: Make) -> None:
    run_dir = make()
    reader, writer = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, bytes([next_attempt(run_dir, "restart")]))
            finally:
                os._exit(0)
        children.append(child)
    os.close(writer)
    for child in children:
        os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as answers:
        assert sorted(answers.read()) == list(range(2, 10))


def test_an_attempt_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        next_attempt(str(tmp_path), "restart")


def test_a_runs_root_that_others_can_change_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    with pytest.raises(NotPermitted, match="could be replaced by others"):
        make()


def test_a_runs_root_that_cannot_be_is_a_clear_error(tmp_path: Path, work: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = JobSpec("t", ("true",), str(work))
    with pytest.raises(StorageError, match="something above it is a file, not a directory") as caught:
        create_run(spec, str(tmp_path / "file" / "runs"), argv=[], cwd="/", environ={})
    assert isinstance(caught.value, HoldfastError)
    assert "--runs" in caught.value.hint


def test_a_run_that_cannot_be_written_leaves_nothing(make: Make, tmp_path: Path, work: Path) -> None:
    (work / "t.py").write_text("x = 1\n" * 1000)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            make("python3", "t.py")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert "File too large" in answer.read()
    os.waitpid(child, 0)
    assert os.listdir(tmp_path / "runs") == []


def test_an_attempt_that_cannot_be_written_leaves_the_run_as_it_was(make: Make) -> None:
    run_dir = make("true")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            next_attempt(run_dir, "restart")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert "File too large" in answer.read()
    os.waitpid(child, 0)
    assert os.listdir(f"{run_dir}/attempts") == ["1"]
    assert next_attempt(run_dir, "restart") == 2


def test_the_script_that_a_link_or_an_empty_line_hides(make: Make, work: Path) -> None:
    (work / "tool").write_text("\x7fELF")
    assert origin_of(make("./tool")).snapshot.files == ()
    (work / "job.sh").write_bytes(b"#!/bin/sh\r\necho\n")
    script = origin_of(make("bash", "job.sh")).snapshot.script
    assert script is not None
    assert "carriage return" in script.note


def test_a_rename_in_the_repository_is_a_change() -> None:
    entries = ["# branch.oid abc", "# branch.head (detached)", "2 R. N... 1 1 1 a b R100 new.py", "? old.py", "? x y"]
    assert parse_status("\0".join(entries).encode()) == ("abc", None, True, ("x y",))


def test_runs_of_before_the_data_directory_was_named_are_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_RUNS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert list_roots()[0] == f"{tmp_path}/data/holdfast/runs"
    before = tmp_path / ".local/share/holdfast/runs"
    assert str(before) not in list_roots()
    before.mkdir(parents=True)
    assert list_roots()[:2] == [f"{tmp_path}/data/holdfast/runs", str(before)]
