"""What a node says of itself before anything of the job runs there."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

from holdfast.core.digest import sha256_hex
from holdfast.core.job.redact import redact_env
from holdfast.core.slurm.nodes import count_cards, select_collective
from holdfast.host.box import read_box
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.nodes import NodeFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DRIVER = "/proc/driver/nvidia/version"
"""Its first line: ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...``."""
_VERSION = re.compile(r"\s(\d+\.\d+(?:\.\d+)?)\s")


def read_node(run_dir: str, command: Sequence[str], environ: Mapping[str, str]) -> NodeFacts:
    """This node, as the job would find it."""
    box = read_box()
    version = _VERSION.search(files.read_text_or_none(DRIVER) or "")
    collective = select_collective(environ)
    try:
        run = sha256_hex(files.read_bytes(f"{run_dir}/{wire.RUN}"))
    except OSError:
        run = ""
    return NodeFacts(
        host=environ.get("SLURMD_NODENAME") or box.host,
        boot_id=box.boot_id,
        kernel=os.uname().release,
        driver="" if version is None else version[1],
        cards=count_cards(environ),
        cpus=len(os.sched_getaffinity(0)),
        workdir=os.getcwd(),
        program=shutil.which(command[0], path=environ.get("PATH")) or "",
        run=run,
        environment=redact_env(collective, extra=collective),
    )
