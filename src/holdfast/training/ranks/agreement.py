"""All ranks act on the same step, without a collective per step (LIB-05, B-51).

A barrier inside a handler deadlocks as soon as one rank was not signalled or sits in a collective; an all-reduce per
step costs each step. Instead the ranks *report and hold*: a rank with a proposal asks how far everybody has begun,
names the farthest step, and all go on until that one. A rank that is inside a collective is never waited for: it has
begun its step, so the named step is not before it. Only ranks between two steps wait, for the time of one round.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from holdfast.model.record import record
from holdfast.training.errors import TrainingError

MAX_REASON_BYTES = 100
JOIN_TIMEOUT_S = 600.0
"""How long ranks wait for each other at the start: loading data and models differs by minutes."""

# What tells one launch from another. Source: torchrun's environment variables, torch/distributed/run.py.
LAUNCH_NAMES = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("HOLDFAST_RUN_ID", "HOLDFAST_ATTEMPT", "SLURM_JOB_ID", "SLURM_STEP_ID"),
)


class AgreementLost(TrainingError, TimeoutError):
    """The other ranks cannot be reached, or did not answer in time: nothing can be decided for all of them."""


class Action(IntEnum):
    """What all ranks do between two steps."""

    SAVE = 1
    STOP = 2


@record
class RankProposal:
    """What one rank wants all to do, and why, in words (at most `MAX_REASON_BYTES` are passed on)."""

    action: Action
    reason: str


@record
class RankDecision:
    """All ranks do `action` when exactly `step` steps are complete."""

    sequence: int
    step: int
    action: Action
    reason: str


class Agreement(Protocol):
    """How the ranks of one launch agree. `token` is 8 hex digits: the same on all ranks, another in each launch."""

    rank: int
    world: int
    token: str

    def arrive(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        """Called between steps: `done` steps are complete, step done + 1 has not begun.

        Also called before the first step, with the number of steps that the resumed state holds. The answer is the
        decision to act on now (its step is `done`); else None, and this rank goes on with step done + 1. A proposal
        that cannot be decided yet is simply offered again at the next call.

        Raises:
            AgreementLost: the others do not answer.
        """
        ...

    def finish(self, done: int) -> None:
        """This rank has no more steps: it holds up nobody's decisions any more."""
        ...

    def publish(self, name: str, value: bytes) -> None:
        """Leave `value` under `name` for the other ranks; once per name."""
        ...

    def wait_for(self, name: str, timeout_s: float) -> bytes:
        """What some rank published under `name`.

        Raises:
            AgreementLost: nobody did in time (a `TimeoutError`); names the rank that waited and what for.
        """
        ...

    def close(self) -> None:
        """Let go of everything; the other ranks may still be at work."""
        ...


class SingleRankAgreement:
    """One rank agrees with itself at once."""

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        self.token = os.urandom(4).hex()
        self._sequence = 0
        self._values: dict[str, bytes] = {}

    def arrive(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        """The proposal is the decision."""
        if proposal is None:
            return None
        self._sequence += 1
        return RankDecision(self._sequence, done, proposal.action, shorten(proposal.reason))

    def finish(self, done: int) -> None:
        """Do nothing: no other rank waits for this one."""

    def publish(self, name: str, value: bytes) -> None:
        """Keep `value` for `wait_for`."""
        self._values[name] = bytes(value)

    def wait_for(self, name: str, timeout_s: float) -> bytes:
        """What was published; nobody else will, so a missing value is an error at once."""
        if name not in self._values:
            raise nobody_published(self.rank, name, min(timeout_s, 0.0))
        return self._values[name]

    def close(self) -> None:
        """Nothing is held."""


@record
class Ranks:
    """Who this process is among the ranks of its launch. `local_world` is 0 when unknown; `key` names the launch."""

    rank: int
    world: int
    local_world: int
    key: str


def read_ranks(environ: Mapping[str, str]) -> Ranks:
    """This process's place, from torch.distributed when it is initialised, else from torchrun's variables, else alone.

    Raises:
        TrainingError: a variable holds no rank, or they contradict each other.
    """
    key = hashlib.sha256(
        "\0".join(environ.get(name, "") for name in LAUNCH_NAMES).encode(errors="surrogateescape")
    ).hexdigest()[:16]
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    elif environ.get("RANK") and environ.get("WORLD_SIZE"):
        rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    else:
        return Ranks(0, 1, 1, key)
    local_world = _number(environ, "LOCAL_WORLD_SIZE") if environ.get("LOCAL_WORLD_SIZE") else 0
    if world == 1:
        local_world = 1
    if not (0 <= rank < world and 0 <= local_world <= world):
        raise TrainingError(
            f"rank {rank} of {world} ({local_world} on this host) is no place in a launch",
            "unset RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, or start the script with torchrun",
        )
    return Ranks(rank, world, local_world, key)


def shorten(reason: str) -> str:
    """A reason within `MAX_REASON_BYTES` of UTF-8, never cut inside a character."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


def nobody_published(rank: int, name: str, waited_s: float) -> AgreementLost:
    """The error of `wait_for`, in the same words everywhere."""
    return AgreementLost(
        f"rank {rank} waited {waited_s:.0f} s for {name!r}, which no rank published",
        "look at the other ranks' output: one of them failed or hangs",
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise TrainingError(f"{name}={text[:40]!r} is not a number", "start the script with torchrun, or unset it")
    return int(text)
