"""One rank of a launch, driven by lines of JSON: each line is a round, a training loop until it is told to stop.

Prints ``{"running": done}`` when the loop runs, then what it did. Options of a round: see `Round`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.training.ranks import board as agreement_board
from holdfast.training.ranks.agreement import Action, RankProposal
from holdfast.training.ranks.join import join_ranks
from holdfast.training.stopping.budget import StopSignals

if TYPE_CHECKING:
    from holdfast.training.ranks.agreement import Agreement


@dataclass
class Round:
    rank: int
    world: int
    directory: str = ""
    key: str = "key"
    seed: int = 0
    limit_s: float = 60.0
    step_s: float = 0.0
    total: int = 10**9
    save_chance: float = 0.0
    collective: bool = False
    store: bool = False
    die_deciding: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def die_in_the_critical_section(board: object, proposal: RankProposal, step: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def meet(config: Round) -> Agreement:
    if config.store:
        from torch.distributed import distributed_c10d

        from holdfast.training.ranks.store import StoreAgreement

        store = distributed_c10d._get_default_store()
        return StoreAgreement(store, rank=config.rank, world=config.world, key=config.key, poll_s=0.02)
    return join_ranks(
        rank=config.rank,
        world=config.world,
        local_world=config.world,
        directory=config.directory,
        key=config.key,
        timeout_s=config.limit_s,
    )


def run(config: Round) -> None:
    draw = random.Random(f"{config.seed}-{config.rank}")
    signals = StopSignals(repeat_s={})
    signals.install()
    met = meet(config)
    if config.die_deciding:
        agreement_board.Board._write = die_in_the_critical_section  # type: ignore[assignment,method-assign]
    step = make_step(config, draw)
    acted: list[tuple[int, int, int]] = []
    late = []
    done, proposal = 0, None
    while True:
        if signals.flag:
            proposal = RankProposal(Action.STOP, f"signal {signals.flag}")
        elif proposal is None and draw.random() < config.save_chance:
            proposal = RankProposal(Action.SAVE, f"rank {config.rank}")
        decision = met.arrive(done, proposal)
        if decision is not None:
            acted.append((decision.sequence, decision.step, int(decision.action)))
            if decision.step != done:
                late.append((decision.step, done))
            if decision.action is Action.STOP:
                break
            proposal = None
        if done >= config.total:
            break
        step()
        done += 1
        if done == 5:
            say(running=done)
    met.finish(done)
    met.publish(f"end-{config.rank}", str(done).encode())
    ends = [
        int(met.wait_for(f"end-{rank}", config.limit_s)) for rank in config.extra.get("living", range(config.world))
    ]
    signals.restore()
    say(done=done, acted=acted, late=late, token=met.token, ends=ends, flag=signals.flag)
    met.close()


def make_step(config: Round, draw: random.Random) -> Any:
    if config.collective:
        import torch
        from torch import distributed

        ones = torch.ones(8)

        def together() -> None:
            time.sleep(draw.random() * config.step_s)
            distributed.all_reduce(ones)
            ones.fill_(1)

        return together

    def alone() -> None:
        if config.step_s:
            time.sleep(draw.random() * config.step_s)

    return alone


def main() -> None:
    if "GLOO" in os.environ:
        from torch import distributed

        place = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")}
        distributed.init_process_group(
            "gloo",
            rank=place["RANK"],
            world_size=place["WORLD_SIZE"],
        )
    say(ready=True)
    for line in sys.stdin:
        run(Round(**json.loads(line)))
    if "GLOO" in os.environ:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
