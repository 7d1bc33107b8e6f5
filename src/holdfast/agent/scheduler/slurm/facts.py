"""Measures a Slurm by its own words: two calls of scontrol, and one of sacct that may fail."""

from __future__ import annotations

from holdfast.core.slurm.texts import read_cards, read_config, read_duration, read_fields
from holdfast.model.errors import HoldfastError
from holdfast.model.slurm import PartitionFacts, SlurmFacts

from .commands import call

SACCT_LIMIT_S = 3.0


def read_facts() -> SlurmFacts:
    """What this Slurm is and has, now.

    Raises:
        PlaceError: it does not answer.
        PreflightFailed: its commands are not there, or refuse.
    """
    config = read_config(call(("scontrol", "show", "config")))
    nodes = [read_fields(line) for line in call(("scontrol", "show", "node", "--oneliner")).splitlines() if line]
    cards: dict[str, int] = {}
    for node in nodes:
        for kind, count in read_cards(node.get("Gres", "")).items():
            cards[kind] = max(cards.get(kind, 0), count)
    kill_wait = read_duration(config.get("KillWait", ""))
    most = config.get("MaxArraySize", "")
    return SlurmFacts(
        version=config.get("SLURM_VERSION", ""),
        cluster=config.get("ClusterName", ""),
        kill_wait_s=30.0 if kill_wait is None else kill_wait,
        requeue=config.get("JobRequeue", "1") != "0",
        preempt_type=config.get("PreemptType", ""),
        preempt_mode=config.get("PreemptMode", ""),
        preempt_warned=_is_preemption_warned(config),
        default_memory=_find_default_memory(config),
        most_array=int(most) if most.isdigit() else None,
        accounting=_has_accounting(config),
        cards=cards,
        nodes=len(nodes),
        partitions=read_partitions(),
    )


def read_partitions() -> tuple[PartitionFacts, ...]:
    """The partitions as they are now. Raises as `read_facts`."""
    lines = call(("scontrol", "show", "partition", "--oneliner")).splitlines()
    return tuple(_read_partition(read_fields(line)) for line in lines if line)


def select_partitions(names: str | None) -> tuple[PartitionFacts, ...]:
    """The partitions of an option of sbatch, those by default where it is None. Raises as `read_facts`."""
    wanted = None if names is None else names.split(",")
    return tuple(one for one in read_partitions() if (one.default if wanted is None else one.name in wanted))


def _read_partition(fields: dict[str, str]) -> PartitionFacts:
    nodes = fields.get("TotalNodes", "")
    return PartitionFacts(
        name=fields.get("PartitionName", ""),
        default=fields.get("Default") == "YES",
        max_time_s=read_duration(fields.get("MaxTime", "")),
        default_time_s=read_duration(fields.get("DefaultTime", "")),
        nodes=int(nodes) if nodes.isdigit() else None,
        preempt_mode=fields.get("PreemptMode", ""),
        grace_s=float(fields["GraceTime"]) if fields.get("GraceTime", "").isdigit() else 0.0,
        state=fields.get("State", ""),
    )


def _find_default_memory(config: dict[str, str]) -> str:
    for name in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU"):
        if config.get(name, "UNLIMITED") not in ("UNLIMITED", "0", ""):
            return f"{name}={config[name]}"
    return ""


def _is_preemption_warned(config: dict[str, str]) -> bool:
    """Whether a preempted job is sent the signal of its ``--signal``. Source: slurm.conf(5)."""
    words = f"{config.get('SlurmctldParameters', '')},{config.get('PreemptParameters', '')}".lower().split(",")
    return not {"preempt_send_user_signal", "send_user_signal"}.isdisjoint(words)


def _has_accounting(config: dict[str, str]) -> bool:
    """Whether sacct answers: a configured accounting may be out of reach."""
    # Without one Slurm says accounting_storage/none, and (null) since 23.11.
    if config.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none"):
        return False
    try:
        call(("sacct", "--noheader", "--format=JobID"), limit_s=SACCT_LIMIT_S)
    except HoldfastError:
        return False
    return True
