"""How the ranks of one launch meet: alone, through a file in memory on one host, or through torch's store."""

from __future__ import annotations

import sys

from holdfast.training.errors import TrainingError

from .agreement import JOIN_TIMEOUT_S, Agreement, SingleRankAgreement
from .board import Board
from .store import StoreAgreement

# How often this process joined under each key: a second run of one script meets under another name than the first.
_joins: dict[str, int] = {}


def join_ranks(
    *,
    rank: int,
    world: int,
    local_world: int,
    directory: str,
    key: str,
    store: object = None,
    timeout_s: float = JOIN_TIMEOUT_S,
) -> Agreement:
    """Meet the other ranks of this launch; every rank calls it the same number of times, with the same `key`.

    One rank is alone. Ranks that all run on this host share a file in `directory`, which costs each step two memory
    accesses; a local file system is best (see `files.find_directory`). Others use the key-value store
    `store` of torch.distributed (its default store when none is given).

    Raises:
        AgreementLost: somebody did not come in time.
        TrainingError: there is neither one host nor a store.
        OSError: the file cannot be made or mapped.
    """
    if world == 1:
        return SingleRankAgreement()
    _joins[key] = generation = _joins.get(key, 0) + 1
    key = f"{key}-{generation}"
    if local_world == world:
        return Board(rank=rank, world=world, directory=directory, key=key, timeout_s=timeout_s)
    return StoreAgreement(store or _default_store(world), rank=rank, world=world, key=key, timeout_s=timeout_s)


def _default_store(world: int) -> object:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way to it
    raise TrainingError(
        f"{world} ranks on several hosts (or LOCAL_WORLD_SIZE is not set) cannot agree without a store",
        "call torch.distributed.init_process_group before the run begins",
    )
