"""The environment that a job starts with: the caller's, the job file's, and what holdfast adds (RAIL-03 to RAIL-17).

Three kinds of names. **Ours**: the run's own variables and the devices; set always, because the marker and the lease
depend on them. **Defaults**: thread caps, allocator, NCCL, output buffering, tracker; set only where neither the caller
nor the job file said anything, so a person's value always wins and the difference is reported as a finding.
**Everything else** is passed on untouched.

Which name and which syntax torch understands depends on its version, which the caller has read from the interpreter's
installed metadata (None: not known, then both names are set). Pure: the environment comes in as a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.cards.choose import visible_devices
from holdfast.model.finding import Finding, Level
from holdfast.model.job import JobSpec, TrackerMode
from holdfast.model.record import record

from .limits import THREAD_VARIABLES
from .redact import REDACTED

if TYPE_CHECKING:
    from holdfast.model.lease import LeasedDevice

ALLOCATOR_NEW = "PYTORCH_ALLOC_CONF"
ALLOCATOR_OLD = "PYTORCH_CUDA_ALLOC_CONF"
ALLOCATOR_PAIR = "expandable_segments:True,max_split_size_mb:512"
NCCL_NEW = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
NCCL_OLD = "NCCL_ASYNC_ERROR_HANDLING"
PATH = "PYTHONPATH"
LIBRARY = "HOLDFAST_LIBRARY"
"""What holdfast appended to `PATH`, so that a run started inside of a run can take it out again."""
OPTIONAL = frozenset(
    f"HOLDFAST_{name}"
    for name in (
        *("DEADLINE", "WORKERS", "GRACE", "GPU_COUNT", "GPU_MEMORY_SHARE", "MEAN_TIME_BETWEEN_INTERRUPTIONS"),
        *("MIRROR_DIR", "CHECKPOINT_EVERY", "CHECKPOINT_KEEP", "SEED"),
    )
)
"""Variables that not every run sets: an enclosing run's are taken out first."""
OWN_VARIABLES: dict[str, str] = {
    "HOLDFAST_RUN_DIR": "",
    "HOLDFAST_RUN_ID": "",
    "HOLDFAST_ATTEMPT": "",
    "HOLDFAST_REASON": "",
    "HOLDFAST_CHECKPOINT_DIR": "; a run keeps its checkpoints when it is restarted: holdfast restart RUN",
    "HOLDFAST_ARTIFACT_DIR": "",
    "HOLDFAST_HEARTBEAT": "",
    "HOLDFAST_CHECKPOINT_REQUEST": "",
}
"""Variables that every job is given and no job may state, with what to do instead."""
NO_CARDS = "-1"
"""`CUDA_VISIBLE_DEVICES` of a job without cards. Not the empty string: some launchers take that for "unset"."""

# Source: pytorch pull requests 96995 (expandable segments, first in 2.1), 134338 (assertions near out-of-memory when
# both options are set; merged 2024-08-29, first in 2.5), 149601 and the warning "PYTORCH_CUDA_ALLOC_CONF is deprecated,
# use PYTORCH_ALLOC_CONF instead" (2.9).
_TORCH_EXPANDABLE, _TORCH_PAIR, _TORCH_ALLOC_NAME = (2, 1), (2, 5), (2, 9)
# Source: pytorch commit 8f8722e3 (first in 2.2) for the name; docs, torch_nccl_environment_variables: default 3.
_TORCH_NCCL_NAME = (2, 2)
# Source: pytorch pull request 152563 (TORCH_FR_*, mid 2025), and the names in libtorch_cpu.so of torch 2.13: the old
# one is read, too, with "is deprecated". 2.10 is the first release of which the new names are certain.
_TORCH_FLIGHT_NAME = (2, 10)
FLIGHT_ENTRIES = 2000
"""torch's own default where it records unasked, and what its tutorial recommends."""
FLIGHT_PREFIX = "rank_"
FLIGHT_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


@record
class LaunchContext:
    """Where one attempt runs and with what, as far as the job is told.

    `deadline_epoch_s` is the wall-clock time at which the run will be asked to stop (seconds since 1970), None without
    one; `threads` the cap for each process of the job, `workers` the bound for data loaders, `torch_version` as text
    (``2.5.1+cu121``), each None when not known. `imposed`: a scheduler chose the cards and named them in the
    environment. `grace_s` is the time between the gentle and the hard stop as planned at the start, `interruption_s`
    the mean time between interruptions, `library` a directory with `holdfast` and nothing else that can be imported,
    `flight_dir` one that takes torch's flight records, `memory_share` what the run reserved of its shared cards.
    """

    run_dir: str
    run_id: str
    attempt: int
    reason: str
    checkpoint_dir: str
    artifact_dir: str
    heartbeat: str
    checkpoint_request: str
    devices: tuple[LeasedDevice, ...] = ()
    deadline_epoch_s: float | None = None
    threads: int | None = None
    workers: int | None = None
    torch_version: str | None = None
    imposed: bool = False
    grace_s: float | None = None
    interruption_s: float | None = None
    library: str | None = None
    flight_dir: str | None = None
    memory_share: float | None = None


@record
class JobEnvironment:
    """The result: the whole environment, the names that holdfast set in it (sorted), and what a person should know."""

    values: dict[str, str]
    added: tuple[str, ...]
    findings: tuple[Finding, ...]


def build_environment(base: Mapping[str, str], spec: JobSpec, placement: LaunchContext) -> JobEnvironment:
    """The environment of the job: `base` (that of `holdfast run`), over it the job file's, then ours.

    Values that were redacted when the run was recorded are not used: the caller's own value stays.
    """
    # An enclosing run's deadline or worker bound is not this run's, also where this one has none.
    user = {name: value for name, value in base.items() if name not in OPTIONAL}
    outer = base.get("HOLDFAST_RUN_DIR")
    for name in FLIGHT_FILES if outer else ():
        # Nor are its flight records: they would lie among that run's.
        if user.get(name, "").startswith(f"{outer}/"):
            del user[name]
    inherited = _without(user.pop(PATH, ""), user.pop(LIBRARY, None))
    if inherited:
        user[PATH] = inherited
    user.update({name: value for name, value in spec.env.items() if value != REDACTED})
    findings: list[Finding] = []
    ours = _build_own(spec, placement)
    defaults = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    defaults.update(_choose_threads(user, placement, findings))
    defaults.update(choose_allocator(user, placement.torch_version))
    defaults.update(choose_nccl(user, placement.torch_version))
    defaults.update(choose_recorder(user, placement))
    defaults.update(_choose_tracker(user, spec.tracker, findings))
    defaults.update(choose_caches(spec.caches))
    _report_overridden(spec.env, ours, findings)
    _report_differences(user, placement, findings)
    added = {name: value for name, value in defaults.items() if name not in user}
    added.update(ours)
    paths = user.get(PATH, "")
    if placement.library is not None and placement.library not in paths.split(":"):
        added.update({PATH: f"{paths}:{placement.library}" if paths else placement.library, LIBRARY: placement.library})
    return JobEnvironment({**user, **added}, tuple(sorted(added)), tuple(findings))


def _build_own(spec: JobSpec, placement: LaunchContext) -> dict[str, str]:
    return {
        **{name: text for name, text in _tell(spec, placement).items() if text is not None},
        "HOLDFAST_RUN_DIR": placement.run_dir,
        "HOLDFAST_RUN_ID": placement.run_id,
        "HOLDFAST_ATTEMPT": str(placement.attempt),
        "HOLDFAST_REASON": placement.reason,
        "HOLDFAST_CHECKPOINT_DIR": placement.checkpoint_dir,
        "HOLDFAST_ARTIFACT_DIR": placement.artifact_dir,
        "HOLDFAST_HEARTBEAT": placement.heartbeat,
        "HOLDFAST_CHECKPOINT_REQUEST": placement.checkpoint_request,
        # What a scheduler gave stays as the scheduler wrote it (LEASE-17).
        **({} if placement.imposed else visible_devices([device.uuid for device in placement.devices] or [NO_CARDS])),
    }


def _tell(spec: JobSpec, placement: LaunchContext) -> dict[str, str | None]:
    """What the training library is told, by name; None where there is nothing to tell. The names are `OPTIONAL`."""
    stated = spec.checkpoints
    told: dict[str, float | str | None] = {
        "HOLDFAST_DEADLINE": None if placement.deadline_epoch_s is None else int(placement.deadline_epoch_s),
        "HOLDFAST_WORKERS": placement.workers,
        "HOLDFAST_GRACE": placement.grace_s,
        # Under a scheduler's own choice of cards the library cannot be promised a number, unless it was asked for.
        "HOLDFAST_GPU_COUNT": len(placement.devices) or (None if placement.imposed else 0),
        "HOLDFAST_GPU_MEMORY_SHARE": placement.memory_share if spec.gpu.memory_share is None else spec.gpu.memory_share,
        "HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS": placement.interruption_s,
        # Each run has a mirror of its own: two that shared one would prune each other's checkpoints.
        "HOLDFAST_MIRROR_DIR": None if stated.mirror is None else f"{stated.mirror.rstrip('/')}/{placement.run_id}",
        "HOLDFAST_CHECKPOINT_EVERY": stated.every,
        "HOLDFAST_CHECKPOINT_KEEP": stated.keep,
        "HOLDFAST_SEED": spec.seed,
    }
    return {name: _write(value) for name, value in told.items()}


def _write(value: float | str | None) -> str | None:
    return f"{value:.10g}" if isinstance(value, float) else None if value is None else str(value)


def _without(paths: str, entry: str | None) -> str:
    """A search path without what an enclosing run had added to it."""
    return paths if entry is None else ":".join(part for part in paths.split(":") if part != entry)


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a version such as ``2.5.1+cu121``; None when there is none."""
    match = re.match(r"(\d+)\.(\d+)", text or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def choose_allocator(user: Mapping[str, str], torch_version: str | None) -> dict[str, str]:
    """The CUDA allocator's setting, in the name and with the options that this torch takes (RAIL-03, B-11).

    Nothing when the user has set either name: the other one would shadow it. Unknown versions get both names with
    both options: an interpreter whose torch we cannot see is far more often new than older than 2.5.
    """
    if ALLOCATOR_NEW in user or ALLOCATOR_OLD in user:
        return {}
    version = parse_version(torch_version)
    if version is None:
        return {ALLOCATOR_NEW: ALLOCATOR_PAIR, ALLOCATOR_OLD: ALLOCATOR_PAIR}
    if version >= _TORCH_ALLOC_NAME:
        return {ALLOCATOR_NEW: ALLOCATOR_PAIR}
    if version >= _TORCH_PAIR:
        return {ALLOCATOR_OLD: ALLOCATOR_PAIR}
    if version >= _TORCH_EXPANDABLE:
        return {ALLOCATOR_OLD: "expandable_segments:True"}
    return {ALLOCATOR_OLD: "max_split_size_mb:512"}


def choose_nccl(user: Mapping[str, str], torch_version: str | None) -> dict[str, str]:
    """Asynchronous NCCL error handling under the name that this torch reads (RAIL-04, B-13).

    The value is torch's own default, 3 (end the process, leave the communicator); torch before 2.2 gets 1, the only
    value that all of those versions know. With both names present a new torch takes the new one. Nothing when the user
    has set either, or blocking waits, which exclude it.
    """
    asked = (NCCL_NEW, NCCL_OLD, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    if any(name in user for name in asked):
        return {}
    version = parse_version(torch_version)
    if version is None:
        return {NCCL_NEW: "3", NCCL_OLD: "1"}
    return {NCCL_NEW: "3"} if version >= _TORCH_NCCL_NAME else {NCCL_OLD: "1"}


def choose_recorder(user: Mapping[str, str], placement: LaunchContext) -> dict[str, str]:
    """Where torch's Flight Recorder leaves its account of the collectives when one times out.

    A new torch has new names and takes the old ones for the same with a warning from each rank; older ones know the old
    names only, so a version in between, or one that is not known, gets both. A name that the user has set in either
    form is left alone, and the other form is not added: with both present the new one would win. Dumps are named after
    this prefix and the rank.
    """
    if placement.flight_dir is None:
        return {}
    version = parse_version(placement.torch_version)
    chosen = {} if "TORCH_NCCL_DUMP_ON_TIMEOUT" in user else {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    for new, old, value in (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", str(FLIGHT_ENTRIES)),
        (*FLIGHT_FILES, f"{placement.flight_dir}/{FLIGHT_PREFIX}"),
    ):
        if new in user or old in user:
            continue
        chosen[new] = value
        if version is None or version < _TORCH_FLIGHT_NAME:
            chosen[old] = value
    return chosen


def _choose_threads(user: Mapping[str, str], placement: LaunchContext, findings: list[Finding]) -> dict[str, str]:
    """Caps for all thread pools; a user's OMP_NUM_THREADS speaks for those that would have followed it."""
    cap = placement.threads
    stated = user.get("OMP_NUM_THREADS", "")
    if stated:
        first = stated.split(",")[0].strip()
        if cap is not None and first.isascii() and first.isdigit() and int(first) > cap:
            evidence = f"OMP_NUM_THREADS is {stated}; the CPU quota of this run suggests at most {cap}"
            remedy = f"unset OMP_NUM_THREADS or set it to {cap}; yours is used"
            findings.append(Finding("environment.threads", Level.WARN, "OMP_NUM_THREADS", evidence, remedy))
        return dict.fromkeys(THREAD_VARIABLES, first) if first.isascii() and first.isdigit() else {}
    return {} if cap is None else dict.fromkeys(THREAD_VARIABLES, str(cap))


def _choose_tracker(user: Mapping[str, str], tracker: TrackerMode, findings: list[Finding]) -> dict[str, str]:
    if tracker is TrackerMode.NONE:
        return {}
    stated = user.get("WANDB_MODE")
    if stated is not None and stated != tracker.value:
        evidence = f"WANDB_MODE is {stated}, the job's tracker mode is {tracker.value}"
        remedy = "your WANDB_MODE is used; unset it, or set `tracker` in the job file, to make the two agree"
        findings.append(Finding("environment.tracker", Level.WARN, "WANDB_MODE", evidence, remedy))
    return {"WANDB_MODE": tracker.value}


def choose_caches(directory: str | None) -> dict[str, str]:
    """Where caches go that would otherwise fill the home directory's disk (STOR-05).

    Not ``XDG_CACHE_HOME``: small per-account state of many programs goes by it, and the job is to find that. Source:
    the documentation of each: huggingface_hub (HF_HOME), torch.hub (TORCH_HOME), torch.compile
    (TORCHINDUCTOR_CACHE_DIR), Triton (TRITON_CACHE_DIR), pip (PIP_CACHE_DIR), W&B (WANDB_CACHE_DIR), CUDA's compiler
    (CUDA_CACHE_PATH).
    """
    if directory is None:
        return {}
    places = {
        "HF_HOME": "huggingface",
        "TORCH_HOME": "torch",
        "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
        "TRITON_CACHE_DIR": "triton",
        "CUDA_CACHE_PATH": "cuda",
        "PIP_CACHE_DIR": "pip",
        "WANDB_CACHE_DIR": "wandb",
    }
    return {name: f"{directory.rstrip('/')}/{leaf}" for name, leaf in places.items()}


def _report_overridden(env: Mapping[str, str], ours: Mapping[str, str], findings: list[Finding]) -> None:
    for name in sorted(set(env) & set(ours)):
        evidence = f"the job file sets {name}, which holdfast sets itself"
        remedy = "choose cards with `gpus`" if name.startswith("CUDA") else f"remove {name} from `env`"
        findings.append(Finding("environment.own", Level.WARN, name, evidence, remedy))


def _report_differences(user: Mapping[str, str], placement: LaunchContext, findings: list[Finding]) -> None:
    stated = user.get(ALLOCATOR_NEW, user.get(ALLOCATOR_OLD))
    if stated is not None and stated != ALLOCATOR_PAIR and correct_allocator(stated) is None:
        name = ALLOCATOR_NEW if ALLOCATOR_NEW in user else ALLOCATOR_OLD
        evidence = f"{name} is {stated}, holdfast would set {ALLOCATOR_PAIR}; yours is used"
        findings.append(Finding("environment.allocator", Level.PASS, name, evidence))
    version = parse_version(placement.torch_version)
    if ALLOCATOR_NEW in user and ALLOCATOR_OLD not in user and version is not None and version < _TORCH_ALLOC_NAME:
        evidence = f"torch {placement.torch_version} does not read {ALLOCATOR_NEW}; it reads {ALLOCATOR_OLD}"
        findings.append(
            Finding("environment.allocator", Level.WARN, ALLOCATOR_NEW, evidence, f"set {ALLOCATOR_OLD} instead")
        )


def correct_allocator(value: str) -> str | None:
    """The corrected form of an allocator setting that torch would refuse; None when the syntax is right (RAIL-03).

    torch wants ``key:value`` pairs joined by commas; ``max_split_size_mb=512``, semicolons and spaces are mistakes that
    end the job at its first allocation. Source: torch docs, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """
    corrected = re.sub(r"\s*;\s*", ",", value.strip())
    corrected = re.sub(r"\s*([:,=\[\]])\s*", r"\1", corrected)
    corrected = re.sub(r"([A-Za-z_]\w*)=", r"\1:", corrected)
    corrected = re.sub(r"[\s,]+", ",", corrected).strip(",")
    return None if corrected == value.strip() else corrected
