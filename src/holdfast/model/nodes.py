"""The nodes of one attempt: what each is, how its command fares, which of them failed first. Node 0 is the leader."""

from __future__ import annotations

from enum import Enum

from .record import field, record

NODES = "nodes.json"
"""In an attempt's directory; its one writer is the leader's launcher (`agent.place.nodes.lead`)."""
NODES_DIR = "nodes"
"""Beside it: ``nodes/K`` has what node K alone writes."""


@record
class NodeFacts:
    """What a node said of itself before anything of the job ran there.

    `driver` is empty without one, `cards` None where Slurm names none. `program` is where the command's first word was
    found, empty when it was not. `run` is the digest of the run's record as this node reads it, empty when it does not
    see it. `environment` are the variables that matter to collectives.
    """

    host: str
    boot_id: str
    kernel: str
    driver: str
    cards: int | None
    cpus: int
    workdir: str
    program: str
    run: str
    environment: dict[str, str] = field(default_factory=dict)


class NodeStatus(str, Enum):
    """How a node fares."""

    JOINING = "joining"
    READY = "ready"
    RUNNING = "running"
    SILENT = "silent"
    ENDED = "ended"
    GONE = "gone"


@record
class NodeState:
    """One node.

    `code` is the exit code of its command (128 and the signal's number where one ended it), None before; `since` when
    it came into this state.
    """

    node: int
    host: str
    state: NodeStatus
    since: str
    code: int | None = None
    facts: NodeFacts | None = None


@record
class NodeFailure:
    """The node that failed first, when nobody had asked for a stop, and what was seen. `code` is then the run's."""

    node: int
    host: str
    code: int
    words: str


@record
class NodesRecord:
    """The content of ``nodes.json``; `address` and `port` are those of the job's own rendezvous."""

    nodes: tuple[NodeState, ...]
    address: str = ""
    port: int = 0
    first: NodeFailure | None = None
    warnings: tuple[str, ...] = ()
