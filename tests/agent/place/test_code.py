from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.checks.code import check_code
from holdfast.agent.checks.context import CheckContext
from holdfast.agent.control import create
from holdfast.agent.control.job import ordered as entry
from holdfast.agent.control.job.ordered import lay_out
from holdfast.core.rules.rules import Rules
from holdfast.host.files import files
from holdfast.host.files.code import store
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.finding import Level
from holdfast.model.job import JobSpec
from holdfast.model.order import CodeRef
from holdfast.model.origin import RunOrigin
from holdfast.model.record import replace
from holdfast.transfer.code.push import push_tree
from holdfast.transfer.code.tree import read_tree
from tests.transfer.code.repositories import EntryBox, list_tree, write

WORK = "work"
pytestmark = pytest.mark.process

FILES: dict[str, bytes | str] = {
    "a/train.py": "print(1)\n",
    "a/run.sh": "#!/bin/sh\n",
    "lib/x.py": "1\n",
    "notes": "n\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir(mode=0o700)
    return tmp_path / "runs"


@pytest.fixture
def code(root: Path, tmp_path: Path) -> CodeRef:
    top = write(tmp_path / "r", FILES)
    (top / "a/run.sh").chmod(0o755)
    (top / "link").symlink_to("lib/x.py")
    tree = read_tree(str(top / "a"), os.environ)
    assert tree.ref.workdir == ""  # without git a directory is its own tree
    tree = read_tree(str(top), os.environ)
    push_tree(EntryBox(root), tree)  # type: ignore[arg-type]
    return replace(tree.ref, workdir="a")


def make_run(root: Path, code: CodeRef | None) -> str:
    """A run as a submission leaves it: its directory, with its code laid out and named in run.json."""
    spec = JobSpec(name="x", command=("true",), workdir="/")
    run_dir = create.create_run(spec, str(root), argv=("holdfast",), cwd="/", environ=os.environ)[0]
    path = f"{run_dir}/{wire.RUN}"
    origin = wire.decode(RunOrigin, wire.parse_object(files.read_bytes(path), path))
    files.commit(path, wire.to_bytes(replace(origin, code=code)))
    return run_dir


def look(run_dir: str) -> list[tuple[Level, str, str]]:
    spec = JobSpec(name="x", command=("true",), workdir="/")
    found = check_code(CheckContext(spec, Rules(), os.environ, run_dir=run_dir))
    return [(item.level, item.subject, item.evidence) for item in found]


@pytest.mark.gotcha("U2")
def test_a_run_gets_a_copy_of_its_own_that_it_may_write(root: Path, code: CodeRef) -> None:
    run_dir = make_run(root, code)
    workdir = lay_out(run_dir, str(root), code)
    assert workdir == f"{run_dir}/{WORK}/a"
    copy = list_tree(Path(run_dir, "work"))
    assert copy == {**{k: str(v).encode() for k, v in FILES.items()}, "link": b"lib/x.py"}
    assert os.access(f"{workdir}/run.sh", os.X_OK)
    Path(workdir, "train.py").write_text("other")
    whole = Path(store.tree_dir(str(root), code.tree), "files/a/train.py")
    assert whole.read_text() == "print(1)\n"
    assert whole.stat().st_nlink == 1
    assert lay_out(run_dir, str(root), code) == workdir
    assert Path(workdir, "train.py").read_text() == "other"
    assert [name for name in os.listdir(run_dir) if files.is_temporary(name)] == []


@pytest.mark.parametrize("limit", ["LARGEST_COPY_BYTES", "MOST_COPIED_FILES"])
def test_a_large_tree_is_used_where_it_is(
    root: Path, code: CodeRef, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(entry, limit, 3)
    run_dir = make_run(root, code)
    assert lay_out(run_dir, str(root), code) == f"{store.tree_dir(str(root), code.tree)}/files/a"
    assert look(run_dir)[0][0] is Level.PASS
    assert not Path(run_dir, "work").exists()


def test_a_tree_that_is_not_there_or_has_no_such_directory_is_told(root: Path, code: CodeRef) -> None:
    run_dir = make_run(root, code)
    with pytest.raises(StorageError, match="cannot be used"):
        lay_out(run_dir, str(root), replace(code, tree="0" * 16))
    for workdir in ("none", "../..", "a/../../.."):
        with pytest.raises(StorageError, match="has no directory"):
            lay_out(run_dir, str(root), replace(code, workdir=workdir))


@pytest.mark.requirement("PRE-13", "B-33a")
@pytest.mark.gotcha("U42")
def test_PRE_13_one_byte_that_was_changed_on_the_box_refuses_the_run_and_names_the_file(
    root: Path, code: CodeRef
) -> None:
    run_dir = make_run(root, code)
    lay_out(run_dir, str(root), code)
    assert look(run_dir) == [(Level.PASS, f"{run_dir}/work", f"5 files are those of tree {code.tree}")]

    Path(run_dir, "work/lib/x.py").write_text("2\n")
    ((level, subject, evidence),) = look(run_dir)
    assert (level, subject, evidence) == (Level.FAIL, f"{run_dir}/{WORK}/lib/x.py", "is not what was sent: changed")
    # Also when it was changed before the run was made of it.
    again = make_run(root, code)
    whole = Path(store.tree_dir(str(root), code.tree), "files/lib/x.py")
    whole.chmod(0o600)
    whole.write_text("3\n")
    lay_out(again, str(root), code)
    assert [item[:2] for item in look(again)] == [(Level.FAIL, f"{again}/{WORK}/lib/x.py")]


def test_what_a_further_attempt_finds_written_is_refused_only_of_programs(root: Path, code: CodeRef) -> None:
    run_dir = make_run(root, code)
    lay_out(run_dir, str(root), code)
    Path(run_dir, "work/notes").write_text("written by the job\n")
    Path(run_dir, "work/out.txt").write_text("written by the job\n")
    assert {item[0] for item in look(run_dir)} == {Level.FAIL, Level.WARN}
    create.next_attempt(run_dir, "restart")
    assert [item[:2] for item in look(run_dir)] == [(Level.WARN, f"{run_dir}/{WORK}/notes")]
    Path(run_dir, "work/a/train.py").write_text("print(2)\n")
    assert (Level.FAIL, f"{run_dir}/{WORK}/a/train.py") in [item[:2] for item in look(run_dir)]


def test_a_tree_that_cannot_be_read_is_no_pass(root: Path, code: CodeRef) -> None:
    run_dir = make_run(root, code)
    lay_out(run_dir, str(root), code)
    store.remove_tree(store.tree_dir(str(root), code.tree))
    ((level, _, evidence),) = look(run_dir)
    assert level is Level.FAIL
    assert "No such file" in evidence
    assert look(make_run(root, None)) == []


def test_what_python_compiles_is_no_difference_and_a_planted_module_is_told(root: Path, code: CodeRef) -> None:
    run_dir = make_run(root, code)
    lay_out(run_dir, str(root), code)
    write(Path(run_dir, "work"), {"lib/__pycache__/x.pyc": "1", "numpy.py": "1"})
    assert [item[0] for item in look(run_dir)] == [Level.WARN]
    assert "numpy.py" in look(run_dir)[0][2]
