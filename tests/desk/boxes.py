"""Facts of a box, as a probe answers them."""

from __future__ import annotations

from holdfast.model.identity import BoxIdentity
from holdfast.model.place import BoxFacts, CardFacts, DiskFacts

FACTS_OF_A_BOX = BoxFacts(
    measured_at="2026-11-22T10:00:00.000Z",
    uid=1000,
    user="me",
    home="/home/me",
    root="/data/runs",
    python="/opt/conda/bin/python3",
    python_version="3.11.9",
    bundle="0123456789abcdef",
    box=BoxIdentity("gpu1", "m", "b", "pid:[4026531836]"),
    clock_epoch_s=1795341600.0,
    clock_ahead_s=0.2,
    kernel="6.1.0",
    shell="/bin/bash",
    flock="taken",
    pidfd="native",
    containment="cgroup_v2",
    cpus=16,
    memory_bytes=128 << 30,
    driver="550.54",
    cards=(CardFacts(0, "NVIDIA H200", 140 << 30), CardFacts(1, "NVIDIA H200", 140 << 30)),
    disks=(DiskFacts("/data/runs", "ext4", 500 << 30, 1000 << 30, 30_000_000, writable=True),),
    tools={"git": "/usr/bin/git", "rsync": "/usr/bin/rsync", "tar": "/usr/bin/tar"},
    limits={"nofile": 1024, "nproc": None},
)
