"""What a start of a run needs, loaded once by the worker, so that a supervisor that it forks finds all in place.

A fork shares the pages of what was loaded before it; what it loads or works out itself it pays for alone, at every run.
"""

from __future__ import annotations

from ..ahead import PRELOADED as SUPERVISOR

PRELOADED = (
    *SUPERVISOR,
    "encodings.ascii",
    "holdfast.agent.clocks",
    "holdfast.agent.create",
    "holdfast.agent.failure",
    "holdfast.agent.handbook",
    "holdfast.agent.launch",
    "holdfast.agent.manifest",
    "holdfast.agent.notify",
    "holdfast.core.rules",
    "holdfast.core.rules_text",
    "holdfast.core.stall",
    "holdfast.core.trend",
    "holdfast.diagnosis.ended.baseline",
    "holdfast.host.allocation",
    "holdfast.host.cgroup_group",
    "holdfast.host.cgroups",
    "holdfast.host.containment",
    "holdfast.host.disks",
    "holdfast.host.keeper",
    "holdfast.host.limits",
    "holdfast.host.members",
    "holdfast.host.namespaces",
    "holdfast.host.spawn",
    "pwd",
    "shlex",
    "traceback",
)
"""The modules that a start and an end without trouble import."""


def warm_up() -> None:
    """Load them, work out what encoding and decoding needs to know, and keep the collector off all of it.

    A collection writes to every object that it visits, and with that copies the page it lies in (gc.freeze, Python's
    gc module).
    """
    import gc

    for name in PRELOADED:
        __import__(name)
    from ...core.environment import parse_version
    from ...model import wire
    from ...model.finding import Finding
    from ...model.identity import WaitStatus
    from ...model.job import JobSpec
    from ...model.origin import RunOrigin
    from ...model.run import CheckpointWish, Desired, RunState

    wire.warm_up(JobSpec, RunOrigin, RunState, WaitStatus, Desired, CheckpointWish, Finding)
    # Its pattern is compiled at its first use.
    parse_version("2.0")
    gc.collect()
    gc.freeze()
