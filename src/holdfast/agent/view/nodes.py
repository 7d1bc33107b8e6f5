"""What is on record of the nodes of an attempt that runs over several."""

from __future__ import annotations

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.nodes import NODES, NODES_DIR, NodesRecord


def read_nodes(attempt_dir: str) -> NodesRecord | None:
    """The nodes of an attempt; None where it has one, or where that cannot be read."""
    path = f"{attempt_dir}/{NODES}"
    try:
        return wire.from_bytes(NodesRecord, files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return None


def name_output(node: int) -> str:
    """Where the output of a node is, below its attempt's directory."""
    return f"{NODES_DIR}/{node}/{wire.OUTPUT}" if node else wire.OUTPUT
