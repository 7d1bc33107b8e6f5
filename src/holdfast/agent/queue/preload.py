"""What each run of the queue would work out for itself, worked out once by the worker that forks its supervisor.

A fork shares the pages of what was loaded before it; what it loads or works out itself it pays for alone, at every run.
What a supervisor loads for life the worker has loaded with `supervisor_process`; here is what its children load (the
checks), and what records, their JSON and patterns need to know at their first use.
"""

from __future__ import annotations

import gc
import sys

from holdfast.agent.checks import postflight, preflight
from holdfast.core.job.environment import parse_version
from holdfast.model import record, wire
from holdfast.model.finding import Finding
from holdfast.model.identity import WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.origin import RunOrigin
from holdfast.model.pattern import compile_now
from holdfast.model.run import CheckpointRequest, RunRequest, RunState

LOADED = (preflight, postflight)


def preload_modules() -> None:
    """Work it out, and keep the collector off all of it (gc.freeze)."""
    for name, module in list(sys.modules.items()):
        if name.startswith("holdfast."):
            record.compile_methods(*(value for value in vars(module).values() if isinstance(value, type)))
    wire.warm_up(JobSpec, RunOrigin, RunState, WaitStatus, RunRequest, CheckpointRequest, Finding)
    compile_now()
    # Its pattern is compiled at its first use.
    parse_version("2.0")
    # A collection writes to every object that it visits, and with that copies the page it lies in.
    gc.collect()
    gc.freeze()
