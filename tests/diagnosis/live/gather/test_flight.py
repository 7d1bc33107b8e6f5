"""Flight Recorder dumps: read without running anything in them, and the odd rank named."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.diagnosis.live.gather.flight import (
    RefusedPickle,
    find_odd_collectives,
    load_plain,
    read_dump,
    read_findings,
)
from tests.diagnosis.live.bench import PAYLOAD, explain, look, stand_still

if TYPE_CHECKING:
    from holdfast.diagnosis.live.gather.flight import FlightFinding

pytestmark = [pytest.mark.contract, pytest.mark.requirement("DIAG-11")]

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def entry(sequence: int, operation: str = "gloo:all_reduce", *, group: str = "0", **more: Any) -> dict[str, Any]:
    """One entry as torch 2.13 writes it."""
    frames = [
        {"name": "all_reduce", "filename": LIBRARY, "line": 3245},
        {"name": "train_step", "filename": "/home/u/train.py", "line": more.pop("line", 40)},
        {"name": "<module>", "filename": "/home/u/train.py", "line": 90},
    ]
    return {
        "frames": frames,
        "record_id": sequence,
        "pg_id": 0,
        "process_group": (group, "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": operation,
        "input_sizes": more.pop("sizes", [[4]]),
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "is_p2p": False,
        **more,
    }


def write(directory: Path, rank: int, entries: list[dict[str, Any]], *, ranks: str = "[0, 1, 2]") -> str:
    dump = {"version": "2.10", "pg_config": {"": {"name": "", "ranks": ranks}}, "pg_status": {}, "entries": entries}
    path = directory / f"rank_{rank}"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    return str(path)


def find(directory: Path, *tables: list[dict[str, Any]], ranks: str = "[0, 1, 2]") -> tuple[FlightFinding, ...]:
    paths = [write(directory, rank, table, ranks=ranks) for rank, table in enumerate(tables)]
    found = read_findings(tuple(paths))
    assert found.value is not None, found.unread
    return found.value


def test_the_rank_that_never_entered_a_collective_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    full = [entry(number) for number in range(1, 4)]
    found = find(tmp_path, full, [entry(1), entry(2, line=77)], full)
    assert len(found) == 1
    assert (found[0].oddity, found[0].odd, found[0].others, found[0].sequence) == ("missing", (1,), (0, 2), 3)
    assert found[0].line == "/home/u/train.py:40 in train_step"
    assert "/home/u/train.py:77" in found[0].odd_last
    assert found[0].describe().startswith("rank 1 never entered collective 3 (gloo:all_reduce)")


def test_the_rank_with_another_operation_or_size_is_named(tmp_path: Path) -> None:
    usual = [entry(1), entry(2)]
    for odd in (entry(2, "gloo:broadcast"), entry(2, sizes=[[8]]), entry(2, input_dtypes=["Half"])):
        found = find(tmp_path, usual, [entry(1), odd], usual)
        assert [(f.oddity, f.odd, f.sequence) for f in found] == [("different", (1,), 2)]


def test_sizes_may_differ_where_the_operation_allows_it(tmp_path: Path) -> None:
    tables = [[entry(1, "nccl:all_to_all", sizes=[[4 + rank]])] for rank in range(3)]
    assert find(tmp_path, *tables) == ()


def test_ranks_that_agree_are_no_finding(tmp_path: Path) -> None:
    assert find(tmp_path, *([entry(1), entry(2)] for _ in range(3))) == ()


def test_entries_that_rolled_out_of_the_ring_are_not_missing(tmp_path: Path) -> None:
    full = [entry(number) for number in range(1, 5)]
    assert find(tmp_path, full[2:], full, full) == ()


def test_a_rank_without_a_dump_is_a_hint_and_no_proof(tmp_path: Path) -> None:
    found = find(tmp_path, [entry(1)], [entry(1)])
    assert [(f.oddity, f.odd) for f in found] == [("no_dump", (2,))]


def test_each_group_has_its_own_sequence(tmp_path: Path) -> None:
    first = [entry(1), entry(9, group="pair")]
    found = find(tmp_path, first, [entry(1)], [entry(1), entry(9, group="pair")])
    assert found == ()


def test_point_to_point_is_left_out(tmp_path: Path) -> None:
    assert find(tmp_path, [entry(1), entry(2, is_p2p=True)], [entry(1)], [entry(1)]) == ()


# ------------------------------------------------------------------------------------------------------------- hostile


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"entries": [_Runs(mark)]}, protocol=protocol)
    with pytest.raises(RefusedPickle, match="asks for"):
        load_plain(data)
    (tmp_path / "rank_0").write_bytes(data)
    answer = read_findings((str(tmp_path / "rank_0"),))
    assert answer.value is None
    assert "asks for" in answer.unread
    assert not mark.exists()


GARBAGE = {
    "empty": b"",
    "text": b"Traceback (most recent call last):\n",
    "cut": pickle.dumps({"entries": [entry(1)]}, protocol=2)[:-9],
    "a list": pickle.dumps([1, 2]),
    "no entries": pickle.dumps({"version": "2.10"}),
    "a persistent id": b"Pdead\n.",
    "a bad opcode": b"\x80\x04\xff.",
    "an extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_dump_is_unread_with_a_reason(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    answer = read_findings((str(path),))
    assert answer.value is None
    assert str(path) in answer.unread


def test_a_pickle_that_asks_for_a_huge_memo_costs_only_the_child(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    # LONG_BINPUT with an index of two thousand million: the C unpickler makes its table that long.
    path.write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    answer = read_findings((str(path),))
    assert answer.value is None
    assert answer.unread


def test_a_dump_with_fields_of_the_wrong_kind_is_survived(tmp_path: Path) -> None:
    odd: list[Any] = [
        None, 7, {}, {"collective_seq_id": "1"}, {"collective_seq_id": True},
        {"collective_seq_id": 1, "frames": "x", "process_group": 3, "input_sizes": [[["deep"]]], "profiling_name": 0.5},
        {"collective_seq_id": 1, "frames": [None, {"filename": 3}], "process_group": (), "input_dtypes": {}},
    ]  # fmt: skip
    path = write(tmp_path, 0, odd)
    assert len(read_dump(path).entries) == 2


def test_links_and_devices_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, 0, [entry(1)])
    link = tmp_path / "rank_1"
    link.symlink_to(path)
    with pytest.raises(ValueError, match="no regular file"):
        read_dump(str(link))
    fifo = tmp_path / "rank_2"
    os.mkfifo(fifo)
    with pytest.raises(ValueError, match="no regular file"):
        read_dump(str(fifo))


def test_no_dumps_are_unread_and_not_agreement() -> None:
    assert read_findings(()).value is None
    assert find_odd_collectives(()) == ()


# --------------------------------------------------------------------------------------------- real ranks, real dumps


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.requirement("DIAG-11", "DIAG-06")
@pytest.mark.parametrize("mode", ["missing", "ends"])
def test_a_rank_that_is_missing_from_a_real_collective_is_named(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("torch")
    from holdfast.diagnosis.live.gather.run_files import RunFiles
    from holdfast.diagnosis.live.gather.target import LiveTarget
    from holdfast.host.process.processes import identify
    from tests.waiting import LONG_S, wait_until

    torchrun = str(Path(sys.executable).with_name("torchrun"))
    ranks = PAYLOAD.with_name("ranks.py")
    argv = [torchrun, "--standalone", "--nproc-per-node", "2", str(ranks), mode, str(tmp_path)]
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in (0, 1)), timeout_s=LONG_S)
            if mode == "missing":
                stand_still(tmp_path)
                identity = identify(process.pid)
                assert identity is not None
                files = RunFiles(heartbeat=str(tmp_path / "heartbeat.json"), attempt_dir=str(tmp_path))
                report = look(LiveTarget("ranks", (identity,), ours=True, files=files), interval_s=3.0)
                assert report.verdict.kind.value == "collective_hang", explain(report)
                assert "look at rank 1 first" in report.verdict.action
        finally:
            if mode == "missing":
                process.terminate()
            process.wait(LONG_S)
    if mode == "ends":
        found = read_findings(tuple(str(path) for path in sorted(tmp_path.glob("rank_*"))))
        assert found.value is not None
        assert [(f.oddity, f.odd, f.sequence) for f in found.value] == [("missing", (1,), 3)]
        assert "ranks.py" in found.value[0].line
