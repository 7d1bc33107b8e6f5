"""Faults of a live run, and the healthy controls in which no fault may be seen."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.verdict import LiveClass as Class

from .spec import Fault, FaultAct, FaultProof, Need, ProofKind, Stage
from .table_ends import BY_A_SHELL, FUSE_NEEDS, LITTLE_MEMORY, ON_A_CARD, TORCHRUN

STALE_S = 33.0
"""A run whose last step is younger than this may only be between two steps."""
SHORT_S = 2.0
UNBUFFERED_NOT: Mapping[str, object] = {"env": {"PYTHONUNBUFFERED": ""}}


def _mark(word: str) -> FaultProof:
    return FaultProof(ProofKind.MARK, word)


def _state(letter: str) -> FaultProof:
    return FaultProof(ProofKind.STATE, letter)


TRAINS = FaultProof(ProofKind.WORDS, "step 12 ")


def _live(  # noqa: PLR0913 - the columns of a table
    name: str,
    summary: str,
    kinds: tuple[Class, ...],
    module: str,
    *proofs: FaultProof,
    gotchas: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
    healthy: bool = False,
    settle_s: float = SHORT_S,
    job: Mapping[str, object] | None = None,
) -> Fault:
    return Fault(
        name, summary, kinds, proofs, (module, name), gotchas=gotchas, needs=needs, job=job or {}, healthy=healthy,
        settle_s=settle_s, slow=True,
    )  # fmt: skip


LIVES: tuple[Fault, ...] = (
    Fault(
        "fuse-hang", "a network disk does not answer", (Class.STORAGE_WAIT,), (_mark("reading"), _state("S")),
        ("storage", "read"), gotchas=("U8",), needs=FUSE_NEEDS, stage=Stage.FUSE, stage_option="read:hang",
        slow=True, settle_s=STALE_S,
    ),
    Fault(
        "fsfreeze", "the file system stands still: uninterruptible sleep", (Class.STORAGE_WAIT,),
        (_mark("writing"), _state("D")), ("storage", "frozen"), needs=(Need.MOUNT_NAMESPACE, Need.LOOP_EXT4),
        stage=Stage.FROZEN_DISK, act=FaultAct.FREEZE, slow=True, settle_s=STALE_S,
    ),
    Fault(
        "stopped", "somebody stops the job with SIGSTOP", (Class.PAUSED,), (_state("T"),), ("hanging", "stopped"),
        act=FaultAct.STOP_JOB, slow=True,
    ),
    _live("busy-loop", "spins without a step", (Class.BUSY_NO_PROGRESS,), "hanging", _mark("spinning"), _state("R"),
          settle_s=STALE_S),
    _live("regex-spin", "one call into C takes for ever", (Class.BUSY_NO_PROGRESS,), "hanging", _mark("matching"),
          _state("R"), settle_s=STALE_S),
    _live("deadlock", "two threads, two locks", (Class.DEADLOCK,), "hanging", _mark("locked"), settle_s=STALE_S),
    _live(
        "pipe-wait", "waits for a worker that never answers", (Class.WAITING_FOR_CHILD,), "hanging", _mark("waiting"),
        settle_s=STALE_S,
    ),
    _live(
        "network-wait", "waits for a peer that never answers", (Class.NETWORK_WAIT,), "hanging", _mark("connected"),
        _mark("accepted"), settle_s=STALE_S,
    ),
    _live(
        "exit-hang", "all is done, and the process does not leave", (Class.EXIT_HANG,), "hanging", _mark("finished"),
        job={"artifacts": ["artifacts/result.json"]},
    ),
    Fault(
        "torchrun-missing-rank", "one of two ranks never comes to the collective", (Class.COLLECTIVE_HANG,),
        (_mark("odd"), _mark("waits")), ("ranks", "missing"), TORCHRUN, needs=(Need.TORCH,), slow=True,
        settle_s=STALE_S,
    ),
    _live("thread-storm", "far more busy threads than cores", (Class.OVERSUBSCRIBED,), "slow", _mark("storm"),
          gotchas=("U40",)),
    _live("starved-loader", "the training waits for its only loader", (Class.LOADER_BOUND,), "slow", _mark("loading"),
          gotchas=("U24",)),
    _live("buffered", "the log stays empty, the work goes on", (Class.BUFFERED,), "slow", _mark("buffering"),
          gotchas=("U43",), job=UNBUFFERED_NOT),
    Fault(
        "noisy-neighbour", "others use every CPU", (Class.NOISY_NEIGHBOUR,), (_state("R"),),
        ("slow", "noisy-neighbour"), gotchas=("U41",), act=FaultAct.NEIGHBOURS, slow=True, settle_s=SHORT_S,
    ),
    _live("thrashing", "reads a file over and over that its memory limit has no room for", (Class.THRASHING,), "memory",
          _mark("thrashing"), needs=(Need.MEMORY_CGROUP,), job=LITTLE_MEMORY),
    Fault(
        "gpu-idle", "the job computes on the CPU while its card idles", (Class.CPU_BOUND,), (_state("R"),),
        ("slow", "noisy-neighbour"), BY_A_SHELL, gotchas=("U38",), needs=(Need.NVML_LIBRARY,), stage=Stage.CARD,
        job={**ON_A_CARD, "priority": "normal"}, slow=True, settle_s=SHORT_S,
    ),
    Fault(
        "gpu-throttle", "the card slows down for heat", (Class.GPU_THROTTLED,), (TRAINS,), ("hanging", "stopped"),
        BY_A_SHELL, gotchas=("U23",), needs=(Need.NVML_LIBRARY,), stage=Stage.CARD, act=FaultAct.CARD, job=ON_A_CARD,
        slow=True, card_after={"0.clock_reasons": "72", "0.temperature": "91", "0.utilisation": "97"}, settle_s=2.0,
    ),
    Fault(
        "gpu-hang", "a call into the driver never returns, and nobody waits for it",
        (Class.PROGRESSING,), (TRAINS,), ("hanging", "stopped"), BY_A_SHELL,
        needs=(Need.NVML_LIBRARY,), stage=Stage.CARD,
        act=FaultAct.CARD, job=ON_A_CARD, slow=True, card_after={"hang.nvmlDeviceGetUtilizationRates.0": "1"},
        settle_s=1.0,
    ),
    Fault(
        "gpu-underfed", "the card says 100 % and draws a quarter of its power", (Class.GPU_UNDERFED,), (TRAINS,),
        ("hanging", "stopped"), BY_A_SHELL, gotchas=("U21",), needs=(Need.NVML_LIBRARY,), stage=Stage.CARD,
        act=FaultAct.CARD, job=ON_A_CARD, slow=True, settle_s=SHORT_S,
        card_after={"0.utilisation": "100", "0.power_mw": "100000", "0.clock.sm": "1410", "0.clock_reasons": "0"},
    ),
    # ------------------------------------------------------------------------------------------ healthy controls
    Fault(
        "gpu-power-cap", "a card at full load that its power limit slows down, as is normal", (Class.PROGRESSING,),
        (TRAINS,), ("hanging", "stopped"), BY_A_SHELL, gotchas=("U23",), needs=(Need.NVML_LIBRARY,),
        stage=Stage.CARD, act=FaultAct.CARD, job=ON_A_CARD, slow=True, settle_s=SHORT_S, healthy=True,
        card_after={"0.utilisation": "100", "0.power_mw": "398000", "0.clock.sm": "1290", "0.clock_reasons": "4"},
    ),
    _live("starting", "compiles before its first step", (Class.STARTING,), "slow", _mark("compiling"), healthy=True),
    _live("evaluating", "an evaluation without steps", (Class.STARTING,), "slow", _mark("evaluating"), healthy=True,
          settle_s=STALE_S),
    _live("slow", "two seconds a step", (Class.PROGRESSING,), "slow", _mark("slow"), healthy=True),
    _live("bursty", "many steps at once, then a pause", (Class.PROGRESSING,), "slow", _mark("bursty"), healthy=True),
    _live("zombie-leader", "the main thread has ended, a thread trains on", (Class.PROGRESSING,), "hanging",
          _mark("left"), _state("Z"), healthy=True),
)  # fmt: skip
