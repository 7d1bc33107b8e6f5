"""Agreement in one process: who is who, values, refusals, and a store that fails."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.training.errors import TrainingError
from holdfast.training.ranks import agreement
from holdfast.training.ranks import board as agreement_board
from holdfast.training.ranks import files as agreement_files
from holdfast.training.ranks import store as agreement_store
from holdfast.training.ranks.agreement import Action, AgreementLost, RankDecision, RankProposal, SingleRankAgreement
from holdfast.training.ranks.board import Board
from holdfast.training.ranks.join import join_ranks
from holdfast.training.ranks.store import StoreAgreement
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.contract

STOP = RankProposal(Action.STOP, "asked")


class Memory:
    """A store of one process; `fails` makes it one whose host is gone."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.fails = False

    def set(self, key: str, value: str | bytes) -> None:
        self.judge()
        self.values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        self.judge()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self.judge()
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.judge()
        with self.lock:
            if self.values.get(key, b"") == expected.encode():
                self.values[key] = desired.encode()
            return self.values[key]

    def judge(self) -> None:
        if self.fails:
            raise RuntimeError("Connection reset by peer")


# ----------------------------------------------------------------------------------------------------------- who is who


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, (0, 1, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, (2, 4, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4, 0)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 1)),
        ({"RANK": "3"}, (0, 1, 1)),
    ],
)
def test_ranks_are_read_from_torchruns_variables(environ: dict[str, str], place: tuple[int, int, int]) -> None:
    found = agreement.read_ranks(environ)
    assert (found.rank, found.world, found.local_world) == place


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "one", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"},
        {"RANK": "0", "WORLD_SIZE": "0"},
    ],
)
def test_a_place_that_cannot_be_is_refused_with_a_remedy(environ: dict[str, str]) -> None:
    with pytest.raises(TrainingError, match="torchrun"):
        agreement.read_ranks(environ)


def test_the_key_differs_between_launches_and_restarts() -> None:
    keys = {
        agreement.read_ranks(environ).key
        for environ in (
            {},
            {"TORCHELASTIC_RUN_ID": "a"},
            {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "1"},
            {"HOLDFAST_RUN_ID": "a"},
            {"HOLDFAST_RUN_ID": "a", "HOLDFAST_ATTEMPT": "2"},
        )
    }
    assert len(keys) == 5


def test_a_reason_is_cut_between_characters() -> None:
    assert agreement.shorten("ü" * 80) == "ü" * 50
    assert agreement.shorten("aü" * 50) == "aü" * 33 + "a"


# ---------------------------------------------------------------------------------------------------------------- alone


@pytest.mark.requirement("B-52")
def test_B_52_one_rank_acts_at_the_very_next_step_boundary(tmp_path: Path) -> None:
    alone = join_ranks(rank=0, world=1, local_world=1, directory=str(tmp_path), key="k")
    assert isinstance(alone, SingleRankAgreement)
    assert alone.arrive(3, None) is None
    assert alone.arrive(4, RankProposal(Action.SAVE, "now")) == RankDecision(1, 4, Action.SAVE, "now")
    assert alone.arrive(4, STOP) == RankDecision(2, 4, Action.STOP, "asked")
    alone.publish("a", b"1")
    assert alone.wait_for("a", 1.0) == b"1"
    with pytest.raises(TimeoutError, match=r"rank 0 .* 'b'"):
        alone.wait_for("b", 5.0)
    assert list(tmp_path.glob(".ranks*")) == []


# ---------------------------------------------------------------------------------------------------------------- board


Pair = tuple[Board, Board]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two ranks on one board. Both are this process, so the decider's lock does not keep them apart: one at a time."""
    with ThreadPoolExecutor(2) as pool:
        boards = [pool.submit(make_board, tmp_path, rank) for rank in (0, 1)]
        one, two = (board.result() for board in boards)
    yield one, two
    for board in (one, two):
        board.close()


def make_board(directory: Path, rank: int, *, world: int = 2, timeout_s: float = LIMIT_S) -> Board:
    return Board(rank=rank, world=world, directory=str(directory), key="k", timeout_s=timeout_s)


@pytest.mark.requirement("LIB-05")
def test_LIB_05_the_farthest_begun_step_is_decided_and_everybody_goes_on_until_it(pair: Pair) -> None:
    one, two = pair
    assert one.arrive(10, None) is None
    assert two.arrive(13, None) is None
    assert one.arrive(11, STOP) is None
    assert [one.arrive(done, STOP) for done in (12, 13)] == [None, None]
    decision = RankDecision(1, 14, Action.STOP, "asked")
    assert two.arrive(14, None) == decision
    assert one.arrive(14, STOP) == decision


def test_a_proposal_waits_until_everybody_has_acted_on_the_decision_before(pair: Pair) -> None:
    one, two = pair
    one.arrive(0, None)
    two.arrive(5, None)
    assert one.arrive(6, RankProposal(Action.SAVE, "s")) == RankDecision(1, 6, Action.SAVE, "s")
    assert one.arrive(7, STOP) is None
    assert two.arrive(6, None) == RankDecision(1, 6, Action.SAVE, "s")
    assert two.arrive(7, None) is None
    assert one.arrive(8, STOP) == RankDecision(2, 8, Action.STOP, "asked")


def test_nothing_is_decided_before_everybody_has_arrived_once(pair: Pair) -> None:
    one, two = pair
    assert one.arrive(0, STOP) is None
    assert one.arrive(1, STOP) is None
    assert two.arrive(4, None) is None
    assert one.arrive(2, STOP) is None
    assert two.arrive(5, None) == RankDecision(1, 5, Action.STOP, "asked")


def test_a_rank_that_has_finished_is_not_waited_for(pair: Pair) -> None:
    one, two = pair
    one.arrive(0, None)
    two.arrive(0, None)
    two.finish(3)
    assert one.arrive(1, STOP) == RankDecision(1, 1, Action.STOP, "asked")
    assert one.arrive(2, STOP) == RankDecision(2, 2, Action.STOP, "asked")


def test_an_interrupt_in_the_middle_of_a_decision_leaves_everything_as_it_was(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.arrive(0, None)
    two.arrive(0, None)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Board, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.arrive(1, STOP)
    assert two.arrive(1, None) is None
    assert two.arrive(2, STOP) == RankDecision(1, 2, Action.STOP, "asked")


def test_values_reach_the_other_rank_and_are_removed_by_the_last_one(pair: Pair, tmp_path: Path) -> None:
    one, two = pair
    assert one.token == two.token
    assert len(one.token) == 8
    one.publish("resume from", b"step-500\0\xff")
    assert two.wait_for("resume from", 1.0) == b"step-500\0\xff"
    modes = {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob(".ranks-*")}
    assert modes == {"0o600"}
    one.close()
    assert two.wait_for("resume from", 1.0) == b"step-500\0\xff"
    two.close()
    assert list(tmp_path.glob(".ranks-*")) == []


def test_waiting_for_a_value_that_nobody_is_left_to_publish_ends_at_once(pair: Pair) -> None:
    one, two = pair
    one.close()
    with pytest.raises(TimeoutError, match=r"rank 1 waited \d+ s for 'x'"):
        two.wait_for("x", 3600.0)


def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    with pytest.raises(AgreementLost, match=r"rank 0 waited 0 s in vain for 2 ranks: 1, 2"):
        make_board(tmp_path, 0, world=3, timeout_s=0.05)
    assert list(tmp_path.glob(".ranks-*")) == []
    with pytest.raises(AgreementLost, match=r"rank 2 waited 0 s for rank 0"):
        make_board(tmp_path, 2, world=3, timeout_s=0.05)


def test_a_board_of_other_ranks_is_not_joined(tmp_path: Path, pair: Pair) -> None:
    with pytest.raises(AgreementLost, match="waited"):
        make_board(tmp_path, 1, world=2, timeout_s=0.05)
    with pytest.raises(AgreementLost, match="waited"):
        make_board(tmp_path, 2, world=3, timeout_s=0.05)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_link_at_the_boards_place_is_not_followed(tmp_path: Path, rank: int) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 100)
    (tmp_path / ".ranks-k").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        make_board(tmp_path, rank, timeout_s=0.05)
    assert victim.read_bytes() == b"precious" * 100


@pytest.mark.parametrize("content", [b"", b"short", random.Random(1).randbytes(4096), bytes(4096)])
def test_what_is_no_board_is_replaced_by_rank_0_and_not_joined_by_others(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".ranks-k").write_bytes(content)
    with pytest.raises(AgreementLost):
        make_board(tmp_path, 1, timeout_s=0.05)
    with ThreadPoolExecutor(2) as pool:
        boards = [pool.submit(make_board, tmp_path, rank) for rank in (0, 1)]
    for board in boards:
        board.result().close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as other:
        yield other
        other.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def identify(pid: int) -> agreement_files.RankProcess:
    with open(f"/proc/{pid}/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[19])
    return agreement_files.RankProcess(pid, start, agreement_files._namespace())


def test_boards_of_ended_launches_are_swept_and_those_of_living_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    path = str(tmp_path / ".ranks-other")
    with monkeypatch.context() as patch:
        patch.setattr(agreement_files, "identify_self", lambda: identify(process.pid))
        board = agreement_files.create_board(path, 1)
    (tmp_path / f".ranks-other.{board.token}.0123").write_bytes(b"a value")
    (tmp_path / ".ranks-other.deadbeef.0123").write_bytes(b"of nobody knows whom")
    board.close()
    agreement_files.remove_ended_boards(str(tmp_path))
    assert len(list(tmp_path.glob(".ranks-other*"))) == 3
    end(process)
    agreement_files.remove_ended_boards(str(tmp_path))
    assert [entry.name for entry in tmp_path.glob(".ranks-other*")] == [".ranks-other.deadbeef.0123"]


def test_a_living_launch_of_the_same_key_is_not_pushed_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(agreement_files, "LINGER_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(agreement_files, "identify_self", lambda: identify(process.pid))
        agreement_files.create_board(str(tmp_path / ".ranks-k"), 2).close()
    with pytest.raises(TrainingError, match="in use by another launch"):
        make_board(tmp_path, 0, timeout_s=0.05)
    end(process)
    with pytest.raises(AgreementLost, match="in vain for 1 rank: 1"):
        make_board(tmp_path, 0, timeout_s=0.05)


def test_a_process_of_another_namespace_is_never_called_dead() -> None:
    own = agreement_files.identify_self()
    assert not own.is_gone()
    assert agreement_files.RankProcess(own.pid, own.start + 1, own.namespace).is_gone()
    assert not agreement_files.RankProcess(own.pid, own.start + 1, own.namespace + 1).is_gone()


def test_shared_memory_is_used_only_if_the_directory_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement_files, "SHARED_MEMORY", str(tmp_path))
    found = agreement_files.find_directory("/fallback")
    assert found == f"{tmp_path}/holdfast-ranks-{os.geteuid()}"
    assert agreement_files.find_directory("/fallback") == found
    os.chmod(found, 0o755)
    assert agreement_files.find_directory("/fallback") == "/fallback"
    os.rmdir(found)
    os.symlink("/", found)
    assert agreement_files.find_directory("/fallback") == "/fallback"
    monkeypatch.setattr(agreement_files, "SHARED_MEMORY", str(tmp_path / "absent"))
    assert agreement_files.find_directory("/fallback") == "/fallback"


# ---------------------------------------------------------------------------------------------------------------- store


@pytest.fixture
def ranks() -> Iterator[Callable[..., list[StoreAgreement]]]:
    made: list[StoreAgreement] = []

    def meet(store: object, world: int, answer_timeout_s: float = LIMIT_S) -> list[StoreAgreement]:
        def one(rank: int) -> StoreAgreement:
            return StoreAgreement(
                store,
                rank=rank,
                world=world,
                key="k",
                timeout_s=LIMIT_S,
                poll_s=0.01,
                answer_timeout_s=answer_timeout_s,
            )

        with ThreadPoolExecutor(world) as pool:
            made.extend(pool.map(one, range(world)))
        return made

    yield meet
    for agreed in made:
        agreed.close()


def walk(agreed: StoreAgreement, begin: int, proposal: RankProposal | None) -> list[RankDecision]:
    """Step until told to stop; what was decided. Each decision must come at its step."""
    decisions: list[RankDecision] = []
    for done in range(begin, 10**7):
        decision = agreed.arrive(done, proposal)
        if decision is not None:
            assert decision.step == done
            decisions.append(decision)
            if decision.action is Action.STOP:
                return decisions
            proposal = STOP
    raise AssertionError("never stopped")


@pytest.mark.requirement("LIB-05")
@pytest.mark.parametrize("wisher", [0, 2])
def test_LIB_05_a_proposal_of_any_rank_reaches_all_through_the_store(
    ranks: Callable[..., list[StoreAgreement]], wisher: int
) -> None:
    three = ranks(Memory(), 3)
    proposals = [RankProposal(Action.SAVE, f"rank {wisher}") if rank == wisher else None for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(walk, three, (0, 5, 40), proposals))
    assert results[0] == results[1] == results[2]
    assert [(decision.sequence, decision.action) for decision in results[0]] == [(1, Action.SAVE), (2, Action.STOP)]
    assert len({agreed.token for agreed in three}) == 1


def test_a_rank_that_finished_or_left_holds_up_no_round(ranks: Callable[..., list[StoreAgreement]]) -> None:
    three = ranks(Memory(), 3)
    for agreed in three:
        agreed.arrive(0, None)
    three[0].finish(1)
    three[0].close()
    three[1].finish(1)
    assert [decision.action for decision in walk(three[2], 1, STOP)] == [Action.STOP]


def test_no_save_is_decided_without_a_rank_that_has_finished_but_a_stop_is(
    ranks: Callable[..., list[StoreAgreement]],
) -> None:
    first, second = ranks(Memory(), 2)
    assert first.arrive(0, None) is None
    assert second.arrive(0, None) is None
    second.finish(3)
    assert first.arrive(1, RankProposal(Action.SAVE, "interval")) is None
    wait_until(lambda: first._proposal is None and first._round == 2, what="the save is void")
    assert first.arrive(2, None) is None
    assert [decision.action for decision in walk(first, 3, STOP)] == [Action.STOP]


def test_no_verdict_in_time_is_an_error_and_no_decision(ranks: Callable[..., list[StoreAgreement]]) -> None:
    two = ranks(Memory(), 2, answer_timeout_s=0.1)
    with pytest.raises(AgreementLost, match="rank 0 cannot agree with the other rank: no verdict within 0 s"):
        walk(two[0], 0, STOP)


def test_a_store_that_fails_is_said_when_it_is_needed_and_not_before(
    ranks: Callable[..., list[StoreAgreement]],
) -> None:
    store = Memory()
    two = ranks(store, 2)
    store.fails = True
    wait_until(lambda: two[0]._broken, what="the thread gives up")
    assert two[0].arrive(1, None) is None
    with pytest.raises(AgreementLost, match="Connection reset by peer"):
        two[0].arrive(2, STOP)
    with pytest.raises(AgreementLost, match="MASTER_ADDR"):
        two[0].publish("x", b"")


def test_values_go_through_the_store_and_a_missing_one_is_named(ranks: Callable[..., list[StoreAgreement]]) -> None:
    two = ranks(Memory(), 2)
    two[0].publish("x", b"\0\xff")
    assert two[1].wait_for("x", LIMIT_S) == b"\0\xff"
    with pytest.raises(TimeoutError, match=r"rank 1 waited \d+ s for 'y'"):
        two[1].wait_for("y", 0.02)


def test_ranks_that_never_reach_the_store_are_named() -> None:
    with pytest.raises(AgreementLost, match="rank 0 waited 0 s in vain for 2 ranks: 1, 2"):
        StoreAgreement(Memory(), rank=0, world=3, key="k", timeout_s=0.02)


def test_without_a_store_ranks_on_several_hosts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TrainingError, match="init_process_group"):
        join_ranks(rank=0, world=4, local_world=2, directory=str(tmp_path), key="k")


def test_the_modules_need_nothing_but_the_standard_library_to_be_imported() -> None:
    code = "import sys; from holdfast.training.ranks import board, store; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert {agreement_board.__name__, agreement_store.__name__} <= set(sys.modules)
