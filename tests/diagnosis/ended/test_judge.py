"""The judge on run directories: what their files say, whatever state they are in, within its time, never raising."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnosis.ended import judge as judging
from holdfast.diagnosis.ended.baseline import list_levels, read_counters, read_level
from holdfast.diagnosis.ended.judge import examine_attempt, examine_here
from holdfast.diagnosis.ended.judgement import read_ended, read_judgement
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.model import wire
from holdfast.model.run import Ended, StopCause, StopRecord, StopRequest
from holdfast.model.verdict import Confidence, FailureClass, RetryPolicy, Verdict
from tests.diagnosis.ended.making import RUN_ID, ended, launch, write_attempt
from tests.each import each

pytestmark = pytest.mark.files
F = FailureClass

TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    main()\n'


@pytest.fixture(autouse=True)
def no_rules(isolated_environment: dict[str, str]) -> None:
    """No failure rules of whoever runs the tests."""


def judged(run_dir: str, end: Ended) -> Verdict:
    verdict = examine_here(run_dir, 1, end).verdict
    assert verdict is not None
    return verdict


@pytest.mark.slow
@pytest.mark.requirement("FAIL-01", "FAIL-03", "FAIL-05", "FAIL-06", "FAIL-09", "FAIL-11")
@each(
    ("code", "output", "kind"),
    [
        (1, TRACEBACK + "KeyError: 'lr'\n", F.BUG),
        (1, TRACEBACK + "ValueError: too many values to unpack (expected 2)\n", F.BUG),
        (1, TRACEBACK + "AssertionError\n", F.BUG),
        (1, TRACEBACK + "ZeroDivisionError: division by zero\n", F.BUG),
        (1, TRACEBACK + "ModuleNotFoundError: No module named 'apex'\n", F.ENVIRONMENT),
        (1, TRACEBACK + "ImportError: libcudart.so.12: cannot open shared object file: No such file\n", F.ENVIRONMENT),
        (
            1,
            TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
            F.GPU_OUT_OF_MEMORY,
        ),
        (1, TRACEBACK + "RuntimeError: CUDA error: out of memory\n", F.GPU_OUT_OF_MEMORY),
        (1, TRACEBACK + "MemoryError\n", F.OUT_OF_MEMORY),
        (1, TRACEBACK + "OSError: [Errno 28] No space left on device: '/c/x.pt'\n", F.DISK_FULL),
        (1, TRACEBACK + "OSError: [Errno 122] Disk quota exceeded\n", F.DISK_FULL),
        (1, TRACEBACK + "OSError: [Errno 30] Read-only file system: '/c/x'\n", F.STORAGE_FAULT),
        (1, TRACEBACK + "OSError: [Errno 116] Stale file handle: '/n/x'\n", F.STORAGE_FAULT),
        (1, TRACEBACK + "OSError: [Errno 5] Input/output error: '/n/x'\n", F.STORAGE_FAULT),
        (1, TRACEBACK + "OSError: [Errno 24] Too many open files\n", F.RESOURCE_LIMIT),
        (1, "mean squared Error 0.1\nepoch 3 done\n", F.UNKNOWN),
        (1, "retrying after error, attempt 3\n", F.UNKNOWN),
        (1, "", F.UNKNOWN),
        (3, "no luck today\n", F.UNKNOWN),
        (2, "usage: train.py [-h]\n", F.UNKNOWN),
        (137, "epoch 1\n", F.KILLED),
        (143, "epoch 1\n", F.KILLED),
        (130, "^C\n", F.KILLED),
        (129, "epoch 1\n", F.HANG_UP),
        (139, "epoch 1\n", F.NATIVE_CRASH),
        (134, "epoch 1\n", F.NATIVE_CRASH),
        (135, "epoch 1\n", F.SHARED_MEMORY),
        (152, "epoch 1\n", F.RESOURCE_LIMIT),
        (127, "sh: 1: trian: not found\n", F.EXEC_FAILED),
        (126, "sh: 1: ./train: Permission denied\n", F.EXEC_FAILED),
        (-9, "epoch 1\n", F.KILLED),
        (-15, "epoch 1\n", F.KILLED),
        (-1, "epoch 1\n", F.HANG_UP),
        (-11, "epoch 1\n", F.NATIVE_CRASH),
        (-4, "epoch 1\n", F.NATIVE_CRASH),
        (-8, "epoch 1\n", F.NATIVE_CRASH),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'\n", F.OUT_OF_MEMORY),
        (-7, "ERROR: Unexpected bus error encountered in worker. insufficient shared memory (shm).\n", F.SHARED_MEMORY),
        (-24, "epoch 1\n", F.RESOURCE_LIMIT),
        (-25, "epoch 1\n", F.RESOURCE_LIMIT),
        (-13, "epoch 1\n", F.UNKNOWN),
        (1, "[rank2]: RuntimeError: Socket Timeout\n", F.COMMUNICATION),
        (0, "OSError: [Errno 28] No space left on device\n", None),
        (0, TRACEBACK + "KeyError: 'caught and logged'\nstep 2\n", None),
        (0, TRACEBACK + "KeyError: 'nothing came after it'\n", F.SUSPICIOUS_FINISH),
    ],
)
def test_FAIL_01_exit_and_words_together_give_the_class(
    tmp_path: Path, code: int, output: str, kind: FailureClass | None
) -> None:
    end = ended(code if code >= 0 else None, -code if code < 0 else None)
    run_dir = write_attempt(Path(tempfile.mkdtemp(dir=tmp_path)), end, output)
    verdict = examine_here(run_dir, 1, end).verdict
    assert (None if verdict is None else verdict.kind) is kind


@pytest.mark.requirement("FAIL-12")
def test_FAIL_12_a_collective_that_timed_out_points_at_a_rank(tmp_path: Path) -> None:
    line = (
        "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before "
        "timing out.\n"
    )
    end = ended(None, 6)
    verdict = judged(write_attempt(tmp_path, end, line), end)
    assert (verdict.kind, verdict.retry) == (F.COMMUNICATION, RetryPolicy.NEVER)
    assert "native_crash" in verdict.also
    assert "(3)" in verdict.action


def test_of_what_nothing_explains_the_last_line_is_told(tmp_path: Path) -> None:
    end = ended(3)
    verdict = judged(write_attempt(tmp_path, end, "epoch 1\nno luck today\n\n"), end)
    assert "its last line: no luck today" in [clue.text for clue in verdict.evidence_for]


@pytest.mark.requirement("FAIL-04")
def test_FAIL_04_the_counter_in_the_exit_record_decides(tmp_path: Path) -> None:
    end = ended(None, 9)
    usage = {"oom_kills": 2, "memory_peak_bytes": 2**30, "memory_limit_bytes": 2**30}
    verdict = judged(write_attempt(tmp_path, end, usage=usage), end)
    assert (verdict.kind, verdict.confidence) == (F.OUT_OF_MEMORY, Confidence.CERTAIN)
    assert "memory at its peak: 1 GiB of 1 GiB" in [clue.text for clue in verdict.evidence_for]


def test_the_last_sample_tells_of_a_kill_when_the_exit_record_does_not(tmp_path: Path) -> None:
    end = ended(None, None)
    run_dir = write_attempt(tmp_path, end, usage={})
    Path(run_dir, "attempts/1/health.jsonl").write_text('{"oom_kills": 0}\n{"oom_kills": 1}\n{"torn')
    assert judged(run_dir, end).kind is F.OUT_OF_MEMORY


@pytest.mark.requirement("DIAG-02")
def test_DIAG_02_another_boot_id_or_process_1_explains_an_end_that_nobody_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ended(None, None)
    run_dir = write_attempt(tmp_path, end)
    assert judged(run_dir, end).kind is F.SUPERVISOR_LOST
    edit(run_dir, wire.MANIFEST, lambda values: values["baseline"].update(init_start_ticks=1_000_000_007))
    assert judged(run_dir, end).kind is F.CONTAINER_RESTART
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "another")
    assert judged(run_dir, end).kind is F.REBOOT


def edit(run_dir: str, name: str, change: Any) -> None:
    path = Path(run_dir, "attempts/1", name)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.requirement("DIAG-02", "FAIL-14")
def test_DIAG_02_with_an_unreadable_kernel_log_and_no_counters_it_is_not_said_to_be_no_oom(tmp_path: Path) -> None:
    end = ended(None, 9)
    run_dir = write_attempt(tmp_path, end, usage={})
    source = str(tmp_path / "no-such-log")
    verdict = examine_attempt(run_dir, 1, end, kernel_source=source).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.confidence) == (F.KILLED, Confidence.POSSIBLE)
    assert not any("out_of_memory" in clue.text for clue in verdict.evidence_against)
    assert any("no-such-log" in clue.text for clue in verdict.unknown)


@pytest.mark.slow
def test_a_log_of_any_size_does_not_cost_the_verdict_what_the_counters_say(tmp_path: Path) -> None:
    end = ended(None, 9)
    run_dir = write_attempt(tmp_path, end, usage={"oom_kills": 1})
    with open(f"{wire.attempt_dir(run_dir, 1)}/{wire.OUTPUT}", "r+b") as file:
        file.truncate(10**11)
    verdict = examine_attempt(run_dir, 1, end, kernel_source=str(tmp_path / "no-such-log")).verdict
    assert verdict is not None
    assert verdict.kind is F.OUT_OF_MEMORY
    assert any("not all of the output" in clue.text for clue in verdict.unknown)


@pytest.mark.requirement("DIAG-02")
def test_DIAG_02_the_kernel_log_names_our_group(tmp_path: Path) -> None:
    now_us = int(monotonic_s() * 1e6)
    log = tmp_path / "kmsg"
    group = f"oom_memcg=/u,task_memcg=/u/holdfast/{RUN_ID}.1"
    words = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,{group},task=python,pid=77,uid=0"
    )
    log.write_text(f"6,5,{now_us},-;{words}\n")
    end = ended(1)
    run_dir = write_attempt(tmp_path, end, usage={})
    verdict = examine_attempt(run_dir, 1, end, kernel_source=str(log)).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.confidence) == (F.OUT_OF_MEMORY, Confidence.CERTAIN), verdict
    edit(run_dir, wire.MANIFEST, lambda values: values["baseline"].update(monotonic_s=monotonic_s() + 3600))
    later = examine_attempt(run_dir, 1, end, kernel_source=str(log)).verdict
    assert later is not None
    assert later.kind is F.UNKNOWN, "it is older than the launch"


def test_a_counter_of_a_group_around_it_that_rose_is_seen(tmp_path: Path) -> None:
    group = tmp_path / "memory" / "box"
    group.mkdir(parents=True)
    for directory in (group, group.parent):
        (directory / "cgroup.procs").touch()
        (directory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
        (directory / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert list_levels(str(group)) == [str(group), str(group.parent)]
    assert read_level(str(group)) == {"path": str(group), "oom_kills": 4, "limit_bytes": None}
    before = read_counters(list_levels(str(group)), [])
    (group / "memory.oom_control").write_text("oom_kill 5\n")
    end = ended(None, 9)
    run_dir = write_attempt(tmp_path, end, usage={}, manifest={**launch("/"), "baseline": {**before}})
    record = examine_here(run_dir, 1, end).aftermath
    levels = record["memory_levels"]
    assert isinstance(levels, list)
    assert [level["oom_kills"] for level in levels] == [5, 4]


def test_a_v2_level_counts_by_its_events_and_one_that_is_gone_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert read_level(str(tmp_path)) == {"path": str(tmp_path), "oom_kills": 2, "limit_bytes": None}
    assert read_level(str(tmp_path / "gone")) is None
    assert list_levels(str(tmp_path / "gone")) == []
    assert list_levels(None) == []


def test_what_the_box_said_soon_after_the_end_is_kept_and_used_later(tmp_path: Path) -> None:
    end = ended(None, 9)
    run_dir = write_attempt(tmp_path, end)
    first = examine_attempt(run_dir, 1, end)
    Path(run_dir, "attempts/1", wire.VERDICT).write_bytes(wire.to_bytes(first))
    stored = read_judgement(run_dir, 1)
    assert stored is not None
    assert stored.verdict == first.verdict
    again = examine_attempt(run_dir, 1, end)
    assert again.aftermath["epoch_s"] == first.aftermath["epoch_s"]


@pytest.mark.parametrize("gone", [wire.MANIFEST, wire.EXIT, wire.OUTPUT, wire.STATE, wire.POSTFLIGHT, "../../run.json"])
def test_a_file_that_is_gone_costs_only_what_it_would_have_told(tmp_path: Path, gone: str) -> None:
    end = ended(None, 11)
    run_dir = write_attempt(tmp_path, end, "epoch 1\n")
    os.unlink(f"{run_dir}/attempts/1/{gone}")
    assert judged(run_dir, end).kind is F.NATIVE_CRASH


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b'{"schema": 99, "baseline": [1], "job": 7, "cgroup": "x", "cards": {"a": 1}}',
        b"{" * 9000,
    ],
)
def test_a_damaged_or_newer_record_never_raises_and_is_named(tmp_path: Path, damage: bytes) -> None:
    end = ended(None, 11)
    run_dir = write_attempt(tmp_path, end, b"\x7fELF\0\0\xff" * 1000)
    for name in (wire.MANIFEST, wire.EXIT, wire.HEARTBEAT, wire.POSTFLIGHT, wire.HEALTH, wire.VERDICT):
        Path(run_dir, "attempts/1", name).write_bytes(damage)
    verdict = examine_attempt(run_dir, 1, end).verdict
    assert verdict is not None
    assert verdict.kind is F.NATIVE_CRASH
    if damage[:1] != b"{" or damage[-1:] == b"{":
        assert any(wire.MANIFEST in clue.text for clue in verdict.unknown)


def test_a_run_directory_that_is_gone_is_a_verdict_too(tmp_path: Path) -> None:
    end = ended(None, 9)
    run_dir = write_attempt(tmp_path, end)
    shutil.rmtree(run_dir)
    verdict = examine_attempt(run_dir, 1, end).verdict
    assert verdict is not None
    assert verdict.kind is F.KILLED
    assert verdict.unknown
    assert read_ended(run_dir, 1) is None


def test_an_examination_that_hangs_is_given_up_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = ended(1)
    run_dir = write_attempt(tmp_path, end)

    def hang(*_: object, **__: object) -> None:
        import signal

        while True:
            signal.pause()

    monkeypatch.setattr(judging, "examine_here", hang)
    verdict = examine_attempt(run_dir, 1, end, deadline_s=0.2).verdict
    assert verdict is not None
    assert verdict.kind is F.UNKNOWN
    assert "did not finish" in verdict.unknown[0].text
    assert f"holdfast diagnose {os.path.basename(run_dir)}" in verdict.action


def test_the_log_may_be_a_fifo_or_a_link_and_nobody_waits_for_it(tmp_path: Path) -> None:
    end = ended(1)
    run_dir = write_attempt(tmp_path, end)
    log = Path(run_dir, "attempts/1", wire.OUTPUT)
    log.unlink()
    os.mkfifo(log)
    assert any("output" in clue.text for clue in judged(run_dir, end).unknown)
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert any("output" in clue.text for clue in judged(run_dir, end).unknown)


def test_another_hosts_run_is_not_judged_by_this_hosts_counters(tmp_path: Path) -> None:
    end = ended(None, None)
    run_dir = write_attempt(tmp_path, end, manifest={"host": "elsewhere"}, usage={})
    verdict = judged(run_dir, end)
    assert verdict.kind is F.SUPERVISOR_LOST
    assert any("it ran on elsewhere" in clue.text for clue in verdict.unknown)


def test_how_it_ended_is_read_from_the_state_else_from_the_exit_record(tmp_path: Path) -> None:
    end = ended(1, stop=StopRecord("exception", traceback="x"))
    run_dir = write_attempt(tmp_path, end)
    assert read_ended(run_dir, 1) == end
    Path(run_dir, "attempts/1", wire.STATE).write_text("torn")
    assert read_ended(run_dir, 1) == end


@pytest.mark.requirement("FAIL-15")
def test_FAIL_15_a_rules_file_that_cannot_be_used_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_FAILURE_RULES", str(tmp_path / "none.toml"))
    end = ended(None, 11)
    verdict = judged(write_attempt(tmp_path, end), end)
    assert verdict.kind is F.NATIVE_CRASH
    assert any("your failure rules are not used" in clue.text for clue in verdict.unknown)


@pytest.mark.requirement("FAIL-07")
@pytest.mark.parametrize(
    ("final", "kind"),
    [
        ({"cards": [{"index": 0, "uuid": "GPU-1", "faults": []}], "complete": True}, F.UNKNOWN),
        (
            {"cards": [{"index": 0, "uuid": "UNREADABLE-0", "faults": ["lost: GPU is lost"]}], "complete": True},
            F.HARDWARE,
        ),
        ({"cards": [{"index": 1, "uuid": "GPU-2", "faults": []}], "complete": True}, F.HARDWARE),
        ({"cards": [{"index": 1, "uuid": "GPU-2", "faults": []}], "complete": False}, F.UNKNOWN),
        ({"cards": [], "complete": False, "reason": "the driver did not answer"}, F.UNKNOWN),
        ({}, F.UNKNOWN),
    ],
)
def test_FAIL_07_a_card_that_is_lost_at_the_end_is_found_by_its_number(
    tmp_path: Path, final: dict[str, Any], kind: FailureClass
) -> None:
    end = ended(1)
    card = {"index": 0, "uuid": "GPU-1", "pci_bus_id": "00000000:3B:00.0", "faults": []}
    run_dir = write_attempt(tmp_path, end, manifest={"cards": [card]})
    edit(run_dir, wire.EXIT, lambda values: values.update(final_cards=final))
    verdict = judged(run_dir, end)
    assert verdict.kind is kind
    assert verdict.cards == (("GPU-1",) if kind is F.HARDWARE else ())
    if not final.get("complete"):
        assert any("cards were not read" in clue.text for clue in verdict.unknown)


@pytest.mark.parametrize(("answered", "told"), [(1, True), (0, False)])
def test_of_a_stop_for_a_stall_the_place_in_its_own_stacks_is_told(tmp_path: Path, answered: int, told: bool) -> None:
    end = ended(None, 15, request=StopRequest(StopCause.STALLED, "holdfast"))
    run_dir = write_attempt(tmp_path, end)
    attempt = Path(run_dir, "attempts/1")
    event = {"seq": 1, "utc": utc_now(), "event": "stacks", "data": {"asked": 1, "answered": answered}}
    (attempt / wire.EVENTS).write_text(json.dumps(event) + "\n")
    older = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in begin\n'
    (attempt / "stacks.txt").write_text(older + older.replace('a.py", line 1 in begin', 'a.py", line 9 in wait'))
    verdict = judged(run_dir, end)
    assert verdict.kind is F.STALLED
    assert any("it stood in wait (a.py:9)" in clue.text for clue in verdict.evidence_for) is told
    assert any("1 of 1 processes did not write" in clue.text for clue in verdict.unknown) is not told


@each(
    ("job", "environment", "ranks"),
    [
        ({"command": ["python", "train.py"], "nodes": 1}, {}, False),
        ({"command": ["torchrun", "--nproc-per-node", "2", "train.py"]}, {}, True),
        ({"command": ["sh", "-c", "cd x && exec mpirun -n 4 ./solve"]}, {}, True),
        ({"command": ["python", "train.py"], "nodes": 2}, {}, True),
        ({"command": ["python", "train.py"]}, {"WORLD_SIZE": "2", "RANK": "0"}, True),
    ],
)
def test_a_job_that_was_meant_to_have_ranks_is_told_to_look_at_the_first_that_failed(
    tmp_path: Path, job: dict[str, Any], environment: dict[str, str], ranks: bool
) -> None:
    end = ended(1)
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    told = judged(
        write_attempt(root, end, TRACEBACK + "TimeoutError\n", record=job, manifest={"environment": environment}), end
    )
    assert told.kind is F.COMMUNICATION
    assert told.action.startswith("look at the rank that failed first") is ranks


def test_the_time_limit_of_the_job_is_what_more_time_is_counted_from(tmp_path: Path) -> None:
    end = ended(124)
    told = judged(write_attempt(tmp_path, end, "step 1\n", record={"timeouts": {"total_s": 36000.0}}), end)
    assert told.kind is F.TIMED_OUT
    assert "--timeout 20h (" in told.action
