"""Who holds a card's memory unseen: real processes on stand-in device nodes; a healthy trainer is never listed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.core.cards.holder_words import advise_on_process
from holdfast.diagnosis.cards import holders
from holdfast.diagnosis.cards.holders import OpenNode, OpenNodes, find_open_nodes, hidden_bytes, judge_holders
from holdfast.model.gpu import GpuProcess, HolderKind
from holdfast.model.record import replace
from tests.diagnosis.cards.cards import GIB, make_card

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.diagnosis.cards.holders import HiddenHolder
    from holdfast.model.gpu import Card

pytestmark = [pytest.mark.process, pytest.mark.requirement("GPUH-07", "B-21", "B-65")]

OPEN = "import mmap, os, sys\nfd = os.open(sys.argv[1], os.O_RDWR)\n"
HOLD = OPEN + "print('ready', flush=True)\nsys.stdin.read()\n"
MAP = OPEN + "area = mmap.mmap(fd, 4096)\nos.close(fd)\nprint('ready', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A directory of stand-in nodes: two cards and the control node."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).write_bytes(bytes(4096))
    return tmp_path


def start(program: str, node: Path, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_processes_are_found_by_the_nodes_that_they_have_open_or_mapped(
    dev: Path, started: list[subprocess.Popen[str]]
) -> None:
    started += [start(HOLD, dev / "nvidia0"), start(MAP, dev / "nvidia1"), start(HOLD, dev / "nvidiactl")]
    started.append(start(HOLD, dev / "nvidia0", HOLDFAST_RUN_ID="20261120-100000-a-0001"))
    found = {holder.pid: holder for holder in find_open_nodes(dev=str(dev)).holders}
    assert {pid: holder.nodes for pid, holder in found.items()} == {
        started[0].pid: ("nvidia0",),
        started[1].pid: ("nvidia1",),
        started[3].pid: ("nvidia0",),
    }, "the control node says nothing about a card"
    assert found[started[3].pid].run_id == "20261120-100000-a-0001"
    assert found[started[0].pid].age_s >= 0
    assert find_open_nodes(dev=str(dev), uid=4_000_000_000).holders == (), "only processes of the account asked for"


def trainer(**values: object) -> OpenNode:
    node = OpenNode(4242, 99, "python", "python train.py", "S", ("nvidia0",), 1000, 600.0)
    return replace(node, **values)  # type: ignore[arg-type]


def judge(
    now: OpenNode, *, card: Card | None = None, ticks: int = 0, sees_everyone: bool = True, over: tuple[str, ...] = ()
) -> tuple[HiddenHolder, ...]:
    held = make_card(memory_used_bytes=8 * GIB, processes=()) if card is None else card
    before = replace(now, cpu_ticks=now.cpu_ticks - ticks)
    answer = judge_holders(
        held, OpenNodes((before,), 0.0), OpenNodes((now,), 6.0), over_runs=frozenset(over), sees_everyone=sees_everyone
    )
    assert answer.value is not None, answer.unread
    return answer.value


@pytest.mark.requirement("B-55")
def test_a_resting_process_that_the_driver_does_not_list_is_a_candidate_with_evidence() -> None:
    (found,) = judge(trainer())
    assert (found.pid, found.start_ticks, found.leftover_of) == (4242, 99, "")
    assert "nvidia0 open and is not in the driver's list" in found.why[0]


@pytest.mark.gotcha("U11")
def test_a_healthy_trainer_in_a_container_is_no_candidate() -> None:
    assert judge(trainer(), ticks=500, sees_everyone=False) == ()
    assert judge(trainer(), sees_everyone=False) == (), "inside a container the driver's list says nothing of ours"


@pytest.mark.parametrize(
    "holder",
    [
        trainer(run_id="20261120-100000-live-0001"),
        trainer(comm="nvidia-persiste"),
        trainer(comm="Xorg"),
        trainer(comm="nvidia-cuda-mps"),
        trainer(in_service=True),
        trainer(nodes=("nvidia1",)),
        trainer(age_s=5.0),
    ],
)
def test_who_is_never_a_candidate(holder: OpenNode) -> None:
    assert judge(holder) == ()


def test_a_process_at_work_or_listed_or_on_a_card_without_hidden_memory_is_no_candidate() -> None:
    assert judge(trainer(), ticks=1) == ()
    listed = GpuProcess(4242, HolderKind.UNMANAGED, used_bytes=0)
    assert judge(trainer(), card=make_card(memory_used_bytes=8 * GIB, processes=(listed,))) == ()
    assert judge(trainer(), card=make_card(memory_used_bytes=0, processes=())) == ()
    unsaid = GpuProcess(1, HolderKind.UNMANAGED, used_bytes=None)
    assert judge(trainer(), card=make_card(memory_used_bytes=8 * GIB, processes=(unsaid,))) == ()
    assert judge(trainer(), card=make_card(memory_used_bytes=8 * GIB, processes=None)) == ()


def test_a_leftover_of_a_run_that_is_over_is_a_candidate_anywhere_and_at_work() -> None:
    run = "20261120-100000-dead-0001"
    (found,) = judge(trainer(run_id=run), ticks=50, sees_everyone=False, over=(run,))
    assert found.leftover_of == run


def test_one_look_or_looks_too_close_decide_nothing() -> None:
    card = make_card(memory_used_bytes=8 * GIB, processes=())
    close = judge_holders(
        card, OpenNodes((trainer(),), 0.0), OpenNodes((trainer(),), 1.0), over_runs=frozenset(), sees_everyone=True
    )
    assert (close.value, "two looks" in close.unread) == (None, True)
    reused = replace(trainer(), start_ticks=100)
    answer = judge_holders(
        card, OpenNodes((trainer(),), 0.0), OpenNodes((reused,), 6.0), over_runs=frozenset(), sees_everyone=True
    )
    assert answer.value == (), "a pid that was taken over is another process"


def test_processes_that_cannot_be_read_leave_the_answer_open() -> None:
    card = make_card(memory_used_bytes=8 * GIB, processes=())
    answer = judge_holders(
        card, OpenNodes((), 0.0), OpenNodes((), 6.0, (7, 8)), over_runs=frozenset(), sees_everyone=True
    )
    assert (answer.value, answer.unread) == (None, "2 processes of this account cannot be looked at")


def test_a_card_without_a_node_number_is_not_judged() -> None:
    card = make_card(minor=None)
    assert not judge_holders(
        card, OpenNodes((), 0.0), OpenNodes((), 6.0), over_runs=frozenset(), sees_everyone=True
    ).known


def test_hidden_memory_is_reckoned_only_where_all_parts_are_known() -> None:
    part = GpuProcess(1, HolderKind.UNMANAGED, used_bytes=3 * GIB)
    assert hidden_bytes(make_card(memory_used_bytes=8 * GIB, processes=(part,))) == 5 * GIB
    assert hidden_bytes(make_card(memory_used_bytes=None)) is None
    assert hidden_bytes(make_card(mig_enabled=True)) is None


@pytest.mark.requirement("GPUH-08")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (HolderKind.OTHER_NAMESPACE, "restart the container"),
        (HolderKind.GHOST, "reset"),
        (HolderKind.UNKNOWN, "look as root"),
        (HolderKind.UNMANAGED, "ask anna"),
        (HolderKind.MANAGED, "holdfast stop"),
    ],
)
def test_every_kind_of_holder_gets_advice_of_its_own(kind: HolderKind, words: str) -> None:
    assert words in advise_on_process(GpuProcess(7, kind, user="anna", run_id="r"), own=False)


@pytest.mark.requirement("B-55")
def test_nothing_in_this_module_can_end_a_process() -> None:
    assert not {"kill", "send_signal", "pidfd_send_signal", "signal"} & set(vars(holders))
