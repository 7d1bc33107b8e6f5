"""Every key of a job file, once: the table behind the reader, the options, the JSON Schema and the documentation.

A key has a path as written (``gpu.min_free``), a kind that says how it is read, the field of `JobSpec` that it fills,
and the option that says the same on the command line. Defaults are `JobSpec`'s own; `default` only words them, and a
test holds the two together. What a key's value means is said in its `help`, nowhere else.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.messages.channels import SECRET
from holdfast.model.record import record

SCHEMA_ID = "holdfast-job-1"
"""Name and version of the job file's form."""


class Kind(str, Enum):
    """How a value is written and read."""

    TEXT = "text"
    NAME = "name"
    COMMAND = "command"
    PATH = "path"
    PATHS = "paths"
    IMAGE = "image"
    ARTIFACTS = "artifacts"
    PATTERNS = "patterns"
    WORDS = "words"
    INT = "int"
    NUMBER = "number"
    BOOL = "bool"
    CHOICE = "choice"
    DURATION = "duration"
    SIZE = "size"
    GPUS = "gpus"
    CPUS = "cpus"
    ENV = "env"
    SECRETS = "secrets"
    LINES = "lines"
    ADDRESSES = "addresses"
    MAIL = "mail"
    MAILS = "mails"
    SERVER = "server"
    KEPT = "kept"
    STATUS = "status"
    BINDS = "binds"
    VARIABLES = "variables"
    EVERY = "every"
    SBATCH = "sbatch"


LIST_KINDS = frozenset(
    {Kind.PATHS, Kind.ARTIFACTS, Kind.PATTERNS, Kind.WORDS, Kind.SECRETS, Kind.LINES, Kind.BINDS, Kind.VARIABLES}
    | {Kind.ADDRESSES, Kind.MAILS}
)
"""Kinds whose option may be given several times."""

MIB = 1024**2
MOST_TASKS = 1 << 22
"""Source: include/linux/threads.h, PID_MAX_LIMIT: there are never more processes on a box."""


@record
class Key:
    """One key: `path` as written, `field` in `JobSpec` (dotted), `option` without dashes (empty: none).

    `absent` is the word which means "not stated" (``none``, ``auto``) where the field may be None; such a key may also
    be null. One whose default is ``none`` takes that word, too. `off` is the word for 0 where that switches something
    off. `least` is the smallest number allowed, `most` the largest.
    """

    path: str
    kind: Kind
    field: str
    option: str
    section: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    absent: str = ""
    off: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def word(self) -> str:
        """The word that takes the default back; empty: there is none."""
        return self.absent or ("none" if self.default == "none" else "")

    @property
    def group(self) -> str:
        """The mapping that the key stands in; empty for the top level."""
        return self.path.rpartition(".")[0]


_JOB, _CARDS, _TIME = "The job", "Cards", "Time"
_LIMITS, _DATA, _RECORD = "Limits and containment", "Data, results, disk", "Record and surroundings"
_CONTAINER, _NOTIFY = "The container", "Messages"

KEYS: tuple[Key, ...] = (
    Key("name", Kind.NAME, "name", "name", _JOB,
        "Name of the run, for every verb: letters, digits, `.`, `-`, `_`.", "from the command"),
    Key("command", Kind.COMMAND, "command", "", _JOB,
        "Argument vector. A plain string is split as a shell would, and never given to a shell."),
    Key("workdir", Kind.PATH, "workdir", "workdir", _JOB, "Directory to run in.", "that of the job file, else here"),
    Key("env", Kind.ENV, "env", "env", _JOB,
        "Variables for the job, added to yours. No secrets: export those instead.",
        "nothing"),
    Key("secrets", Kind.SECRETS, "secrets", "secret", _JOB,
        "Secrets of the box that the job gets: NAME as the variable NAME, NAME=file as a variable with the path of a "
        "file. `holdfast secret push PLACE NAME` puts them there.", "none"),
    Key("setup", Kind.LINES, "setup", "setup", _JOB,
        "Lines of sh before the command, where it runs: `module load cuda`. One that fails ends the run.", "none"),
    Key("smoke", Kind.COMMAND, "smoke", "smoke", _JOB,
        "A cheap trial (one or two batches) on the CPU where the job runs, once for each state of the code and of "
        "`env`, within `timeouts.preflight`; when it fails the job does not start. Words as of `command`, without a "
        "shell: `sh -c 'a && b'`.", "none"),
    Key("skip_smoke", Kind.BOOL, "skip_smoke", "skip-smoke", _JOB,
        "Start without the smoke test; the record says so.", "false"),
    Key("seed", Kind.INT, "seed", "seed", _JOB,
        "The random seed that the job will use, for the record and as HOLDFAST_SEED: nothing is seeded with it unless "
        "the script does that.",
        "not stated", absent="none"),
    Key("priority", Kind.CHOICE, "priority", "priority", _JOB,
        "CPU and disk priority: low is nice 10, background nice 19; auto is low where others work here, else normal.",
        "auto", ("auto", "background", "low", "normal")),
    Key("gpus", Kind.GPUS, "gpus", "gpus", _CARDS,
        "Cards: a count, any:N, indexes (0,1; `0,` is card 0), or UUIDs of cards or MIG slices.", "0"),
    Key("nodes", Kind.INT, "nodes", "nodes", _CARDS,
        "Nodes of a place of kind slurm that the command runs on at once; cards, cores and memory are of each node.",
        "1", least=1, most=512),
    Key("gpu.min_free", Kind.SIZE, "gpu.min_free_bytes", "min-free", _CARDS,
        "Memory that each card must have free.", "10GiB, or the box's rule", absent="none"),
    Key("gpu.wait", Kind.DURATION, "gpu.wait_s", "wait", _CARDS,
        "How long to stand in line for busy cards; 0 fails at once and names the holder.", "0s"),
    Key("gpu.share", Kind.BOOL, "gpu.share", "share", _CARDS,
        "Share the cards with other runs that say the same.", "false"),
    Key("gpu.memory", Kind.SIZE, "gpu.memory_bytes", "gpu-memory", _CARDS,
        "What the job will use of each card. With `share` that much is reserved for it; without, the card is taken "
        "whole, and must have that much free.", "not stated",
        absent="none"),
    Key("gpu.max_hold", Kind.DURATION, "gpu.max_hold_s", "max-hold", _CARDS,
        "Give the cards back after this long, by stopping the job.", "no limit", absent="none"),
    Key("gpu.idle_window", Kind.DURATION, "gpu.idle_window_s", "idle-window", _CARDS,
        "How long a card is watched to be idle before it is taken.", "2s"),
    Key("gpu.memory_share", Kind.NUMBER, "gpu.memory_share", "gpu-memory-share", _CARDS,
        "Share of each card's memory that torch may take, 0.01 to 1; `holdfast.training` applies it.", "not stated",
        absent="none", least=0.01, most=1),
    Key("gpu.verify", Kind.BOOL, "gpu.verify", "gpu-verify", _CARDS,
        "Ask the job's own torch before the start whether it sees a card; a run that would fall to the CPU is refused.",
        "true"),
    Key("timeout", Kind.DURATION, "timeouts.total_s", "timeout", _TIME,
        "Deadline of each attempt, from its start, waiting for cards included; 90 is 90 s.", "no limit", absent="none"),
    Key("timeouts.preflight", Kind.DURATION, "timeouts.preflight_s", "timeout-preflight", _TIME,
        "Deadline of the checks before the start.", "2m"),
    Key("timeouts.run", Kind.DURATION, "timeouts.run_s", "timeout-run", _TIME,
        "Deadline of the job itself.", "no limit", absent="none"),
    Key("timeouts.postflight", Kind.DURATION, "timeouts.postflight_s", "timeout-postflight", _TIME,
        "Deadline of the checks after the end.", "5m"),
    Key("grace", Kind.DURATION, "grace_s", "grace", _TIME,
        "Time between the gentle and the hard stop; auto is twice the measured checkpoint time, at least 30 s.",
        "auto", absent="auto"),
    Key("grace_max", Kind.DURATION, "grace_max_s", "grace-max", _TIME,
        "Longest grace, also while a save still makes progress.", "10m"),
    Key("expected", Kind.DURATION, "expected_s", "expected", _TIME,
        "How long the job should take; a finish in under half of it is flagged.", "not stated", absent="none"),
    Key("retries.max", Kind.INT, "retries.max", "retries", _TIME,
        "How many attempts in a row are begun without you after a failure that may pass: transient, a full disk with "
        "declared scratch, a broken card.", "1", least=0, most=100),
    Key("retries.wait", Kind.DURATION, "retries.wait_s", "retry-wait", _TIME,
        "Pause before the first of them; three times as long before each further one.", "5s"),
    Key("retries.out_of_memory", Kind.CHOICE, "retries.out_of_memory", "retry-out-of-memory", _TIME,
        "In the queue, once, after a card was full: again on a card that nobody shares, or on one with more memory.",
        "never", ("never", "alone", "larger")),
    Key("stall.no_progress", Kind.DURATION, "stall.no_progress_s", "stall-no-progress", _TIME,
        "How long a step may take before the run counts as stalled; auto learns it. The first has stall.startup.",
        "auto", absent="auto", off="off"),
    Key("stall.no_output", Kind.DURATION, "stall.no_output_s", "stall-no-output", _TIME,
        "How long a job whose steps cannot be seen may be silent before it counts as stalled.", "off", off="off"),
    Key("stall.startup", Kind.DURATION, "stall.startup_s", "stall-startup", _TIME,
        "How long the first step may take, and a phase that was not seen before; auto is 2h.", "auto", absent="auto"),
    Key("stall.action", Kind.CHOICE, "stall.action", "stall-action", _TIME,
        "What a stall leads to: stacks and a report, or also the end of the job.", "report", ("report", "stop")),
    Key("limits.memory", Kind.SIZE, "limits.memory_bytes", "limit-memory", _LIMITS,
        "Memory of the whole process tree; above it the kernel kills.", "no limit", absent="none", least=MIB),
    Key("limits.memory_high", Kind.SIZE, "limits.memory_high_bytes", "limit-memory-high", _LIMITS,
        "Memory above which the job is slowed down, before it is killed.", "no limit", absent="none", least=MIB),
    Key("limits.swap", Kind.SIZE, "limits.swap_bytes", "limit-swap", _LIMITS,
        "Swap that the tree may use beside limits.memory; it is barred otherwise.", "no swap", absent="none"),
    Key("limits.cpus", Kind.NUMBER, "limits.cpus", "limit-cpus", _LIMITS,
        "CPU time in cores: 0.5 is half of one core.", "no limit", absent="none", least=0.01),
    Key("limits.cpu_weight", Kind.INT, "limits.cpu_weight", "limit-cpu-weight", _LIMITS,
        "Share of CPU under contention, 1 to 10000 (100 is everybody's).", "unchanged", absent="none",
        least=1, most=10000),
    Key("limits.affinity", Kind.CPUS, "limits.affinity", "limit-affinity", _LIMITS,
        "CPUs to run on, like 0-3,6.", "all"),
    Key("limits.tasks", Kind.INT, "limits.tasks", "limit-tasks", _LIMITS,
        "Processes and threads in the whole tree.", "no limit", absent="none", least=1, most=MOST_TASKS),
    Key("limits.open_files", Kind.INT, "limits.open_files", "limit-open-files", _LIMITS,
        "Open files of each process.", "unchanged", absent="none", least=16),
    Key("limits.unenforced", Kind.CHOICE, "limits.unenforced", "limit-unenforced", _LIMITS,
        "What to do about a limit that nothing on this box can enforce.", "fail", ("fail", "warn")),
    Key("containment", Kind.CHOICE, "containment", "containment", _LIMITS,
        "How the job is kept together; auto takes the first of these that works here.", "auto",
        ("auto", "pid_namespace", "cgroup_v2", "cgroup_v1", "subreaper", "process_group")),
    Key("on_supervisor_death", Kind.CHOICE, "on_supervisor_death", "on-supervisor-death", _LIMITS,
        "What becomes of the job when its supervisor is killed.", "keep", ("keep", "kill")),
    Key("container.image", Kind.IMAGE, "container.image", "image", _CONTAINER,
        "Image in which the command runs: NAME@sha256:..., or the path of a SIF file.", "none", absent="none"),
    Key("container.runtime", Kind.CHOICE, "container.runtime", "runtime", _CONTAINER,
        "What starts it; auto takes the first that is here and has the image, and says why.", "auto",
        ("auto", "podman", "docker", "apptainer", "singularity")),
    Key("container.binds", Kind.BINDS, "container.binds", "bind", _CONTAINER,
        "What of the box is inside besides code, run directory, data and inputs: SOURCE[:TARGET[:ro|rw]], read-only "
        "unless it says rw.", "none"),
    Key("container.shm", Kind.SIZE, "container.shm_bytes", "shm", _CONTAINER,
        "Size of /dev/shm, through which data-loader workers hand batches.", "as the box's", absent="auto",
        least=65536),
    Key("container.user", Kind.CHOICE, "container.user", "container-user", _CONTAINER,
        "Who the job is inside: host is this account, image the image's own user.", "host", ("host", "image")),
    Key("container.entrypoint", Kind.CHOICE, "container.entrypoint", "entrypoint", _CONTAINER,
        "What becomes of the image's entry point: clear leaves it out, keep hands the command to it.", "clear",
        ("clear", "keep")),
    Key("container.init", Kind.BOOL, "container.init", "container-init", _CONTAINER,
        "A first process that reaps and forwards signals; not where the image has one of its own.", "true"),
    Key("container.network", Kind.TEXT, "container.network", "network", _CONTAINER,
        "The container's network: host, none, or the name of one that the runtime knows.", "host"),
    Key("container.env", Kind.VARIABLES, "container.env", "pass-env", _CONTAINER,
        "Variables of the caller that go in; all others stay outside.", "none"),
    Key("container.moving_tag", Kind.BOOL, "container.moving_tag", "moving-tag", _CONTAINER,
        "Take an image by its tag alone, which may be another image tomorrow; what it was is recorded.", "false"),
    Key("inputs", Kind.PATHS, "inputs", "input", _DATA,
        "Files that must exist and be readable before the start.", "none"),
    Key("config", Kind.PATH, "config", "config", _DATA,
        "The job's configuration: copied and hashed; must parse when it is YAML, JSON or TOML.", "none",
        absent="none"),
    Key("data", Kind.PATHS, "data", "data", _DATA, "Data sets: read-only for the job, proven unchanged after it.",
        "none"),
    Key("artifacts", Kind.ARTIFACTS, "artifacts", "artifact", _DATA,
        "Results, relative to the run directory, that must be fresh and not empty for success.", "none"),
    Key("results.to", Kind.PATH, "results.to", "results-to", _DATA,
        "Directory on storage that lasts: after success the results are copied to PATH/<run-id> and proven there; "
        "where they were not, the run has failed.", "none", absent="none"),
    Key("results.paths", Kind.ARTIFACTS, "results.paths", "results-path", _DATA,
        "What is copied: files, directories and patterns, relative to the run directory; else `artifacts`, and the "
        "metrics of `holdfast.training`.", "not stated"),
    Key("results.tries", Kind.INT, "results.tries", "results-tries", _DATA,
        "How often the copy is tried before the run has failed.", "3", least=1, most=100),
    Key("results.wait", Kind.DURATION, "results.wait_s", "results-wait", _DATA,
        "Pause after the first try that failed; three times as long after each further one.", "10s"),
    Key("results.prune_scratch", Kind.BOOL, "results.prune_scratch", "results-prune-scratch", _DATA,
        "Remove what `disk.scratch` names once the copy is proven.", "false"),
    Key("disk.min_free", Kind.SIZE, "disk.min_free_bytes", "disk-min-free", _DATA,
        "Space that must stay free on every disk in use.", "1GB"),
    Key("disk.min_free_inodes", Kind.INT, "disk.min_free_inodes", "disk-min-free-inodes", _DATA,
        "Inodes that must stay free on every disk in use.", "1000", least=0),
    Key("disk.checkpoint_size", Kind.SIZE, "disk.checkpoint_bytes", "checkpoint-size", _DATA,
        "Size of one checkpoint, optimizer state included; room for all that are kept is checked.", "0"),
    Key("disk.keep", Kind.INT, "disk.keep", "checkpoint-keep", _DATA, "How many checkpoints are kept.", "1", least=1),
    Key("disk.paths", Kind.PATHS, "disk.paths", "disk-path", _DATA,
        "Further directories whose disks must have room.", "none"),
    Key("disk.expected_files", Kind.INT, "disk.expected_files", "expected-files", _DATA,
        "How many files the job will make; so many inodes must be free beyond those that stay free.", "0", least=0),
    Key("disk.scratch", Kind.PATTERNS, "disk.scratch", "scratch", _DATA,
        "Patterns, relative to the run directory and to `workdir`, of what may be removed when a disk is full.",
        "none"),
    Key("caches", Kind.PATH, "caches", "caches", _DATA,
        "Directory on a large disk for the caches of Hugging Face, torch, Triton, pip and W&B.", "none",
        absent="none"),
    Key("checkpoints.every", Kind.EVERY, "checkpoints.every", "checkpoint-every", _DATA,
        "How often `holdfast.training` saves: auto, a duration with its unit (10m), or a number of steps.",
        "as the script says", absent="script"),
    Key("checkpoints.keep", Kind.INT, "checkpoints.keep", "keep-last", _DATA,
        "How many of its last checkpoints `holdfast.training` keeps.",
        "as the script says", absent="script", least=1),
    Key("checkpoints.mirror", Kind.PATH, "checkpoints.mirror", "checkpoint-mirror", _DATA,
        "Directory on storage that outlives the box; `holdfast.training` keeps a proven copy in PATH/<run-id>.", "none",
        absent="none"),
    Key("checkpoints.interruptions", Kind.DURATION, "checkpoints.interruptions_s", "interruptions", _DATA,
        "Mean time between interruptions here, for `every: auto`; observed is that of the run's earlier attempts.",
        "observed", absent="observed", least=1),
    Key("output.max", Kind.SIZE, "output_max_bytes", "output-max", _RECORD,
        "Size of the output log; beyond it the middle is cut, head and tail stay.", "200MiB", least=65536),
    Key("health_every", Kind.DURATION, "health_every_s", "health-every", _RECORD,
        "Time between health samples; 0 takes none.", "30s"),
    Key("tracker", Kind.CHOICE, "tracker", "tracker", _RECORD,
        "Experiment tracker mode for the job; none leaves its environment alone.", "offline",
        ("offline", "online", "none")),
    Key("threads", Kind.INT, "threads", "threads", _RECORD,
        "Threads for each process's numeric libraries; auto derives them from the CPU quota.", "auto",
        absent="auto", least=1),
    Key("login_shell", Kind.BOOL, "login_shell", "login-shell", _RECORD,
        "Start through a login shell; the devices are verified after it.", "false"),
    Key("pty", Kind.BOOL, "pty", "pty", _RECORD, "Give the job a terminal for its output.", "false"),
    Key("allow_install", Kind.BOOL, "allow_install", "allow-install", _RECORD,
        "Allow commands that install packages.", "false"),
    Key("ptrace", Kind.CHOICE, "ptrace", "ptrace", _RECORD,
        "Who of your account may attach a debugger or py-spy where Yama restricts it.", "any", ("any", "none")),
    Key("notify.command", Kind.COMMAND, "notify.command", "notify-command", _NOTIFY,
        "Command that gets each message as JSON on its standard input.", "none"),
    Key("notify.webhook", Kind.ADDRESSES, "notify.webhook", "notify-webhook", _NOTIFY,
        "URLs that get each message as JSON by POST; secret:NAME is an address that the box keeps as a secret.", "none",
        absent="none"),
    Key("notify.slack", Kind.ADDRESSES, "channels.slack", "notify-slack", _NOTIFY,
        "Incoming webhooks of Slack, or of what understands them, by the names of secrets: secret:SLACK.", "none"),
    Key("notify.discord", Kind.ADDRESSES, "channels.discord", "notify-discord", _NOTIFY,
        "Webhooks of Discord, by the names of secrets.", "none"),
    Key("notify.ntfy", Kind.ADDRESSES, "channels.ntfy", "notify-ntfy", _NOTIFY,
        "Topics of ntfy: https://ntfy.sh/TOPIC, or secret:NAME.", "none"),
    Key("notify.email", Kind.MAILS, "channels.email", "notify-email", _NOTIFY,
        "Addresses that get a mail, by the box's sendmail or by notify.smtp.", "none"),
    Key("notify.email_from", Kind.MAIL, "channels.email_from", "notify-email-from", _NOTIFY,
        "The sender of these mails.", "the account at the box", absent="none"),
    Key("notify.smtp", Kind.SERVER, "channels.smtp", "notify-smtp", _NOTIFY,
        "Mail server, HOST or HOST:PORT, that is used instead of the box's sendmail.", "none", absent="none"),
    Key("notify.smtp_user", Kind.TEXT, "channels.smtp_user", "notify-smtp-user", _NOTIFY,
        "Name to log in to it with.", "none", absent="none"),
    Key("notify.smtp_password", Kind.KEPT, "channels.smtp_password", "notify-smtp-password", _NOTIFY,
        "The secret of the box that is its password: secret:NAME.", "none", absent="none"),
    Key("notify.smtp_tls", Kind.CHOICE, "channels.smtp_tls", "notify-smtp-tls", _NOTIFY,
        "How the connection to it is protected.", "starttls", ("starttls", "tls", "none")),
    Key("notify.every", Kind.STATUS, "channels.every", "notify-every", _NOTIFY,
        "Tell how far a run is that runs, each time that this much has passed: 6h, 500 steps, 2 epochs.", "never",
        absent="never"),
    Key("notify.on", Kind.WORDS, "notify.on", "notify-on", _NOTIFY,
        "Which moments are told; alert is all that needs a person meanwhile, ended every end, failed an end without "
        "success or in doubt, group the last end of a queue's group, none nothing.",
        "[alert, ended]", ("waiting", "starting", "running", "stopping", "alert", "ended", "failed", "group", "none")),
    Key("slurm", Kind.SBATCH, "slurm", "slurm", _RECORD,
        "Options of sbatch by their long names, over those of the place: partition, time, account. Only places of kind "
        "slurm look at them.", "none"),
)  # fmt: skip
"""All keys, in the order of the documentation."""

BY_PATH: dict[str, Key] = {key.path: key for key in KEYS}
"""Path to key."""

GROUPS: dict[str, tuple[Key, ...]] = {}
"""Group name to its keys; the top level's name is empty."""
for _key in KEYS:
    GROUPS[_key.group] = (*GROUPS.get(_key.group, ()), _key)

SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(key.section for key in KEYS))
"""Section titles of help and documentation, in order."""

_DURATION_PATTERN = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?\s*(ms|min|[smhdwSMHDW])\s*)+)\s*$"
_EVERY_PATTERN = r"^\s*(auto|\d+(\s*steps?)?|(\d+(\.\d+)?\s*(ms|min|[smhdwSMHDW])\s*)+)\s*$"
_STATUS_PATTERN = r"^\s*(\d+(\s*(steps?|epochs?))?|(\d+(\.\d+)?\s*(ms|min|[smhdwSMHDW])\s*)+)\s*$"
_SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([kKmMgGtTpP]([iI]?[bB]?)?|[bB])?\s*$"
_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$"
_STRINGS: dict[str, object] = {"type": "array", "items": {"type": "string"}}


def build_json_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of a job file, for editors and other programs."""
    properties = {key.path: _describe(key) for key in GROUPS[""]}
    for group, keys in GROUPS.items():
        if group:
            inner = {key.path.removeprefix(f"{group}."): _describe(key) for key in keys}
            properties[group] = {"type": "object", "additionalProperties": False, "properties": inner}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA_ID}",
        "title": "holdfast job file",
        "type": "object",
        "additionalProperties": False,
        "required": ["command"],
        "properties": properties,
    }


def _describe(key: Key) -> dict[str, object]:
    form = _form(key)
    words = [*([key.word] if key.word else []), *([None] if key.absent else []), *([key.off, False] if key.off else [])]
    if words:
        form = {"anyOf": [form, {"enum": words}]}
    if key.default:
        return {"description": f"{key.help} Default: {key.default}.", **form}
    return {"description": key.help, **form}


def _form(key: Key) -> dict[str, object]:
    bounds = {word: bound for word, bound in (("minimum", key.least), ("maximum", key.most)) if bound is not None}
    match key.kind:
        case Kind.BOOL:
            return {"type": "boolean"}
        case Kind.INT:
            return {"type": "integer", **bounds}
        case Kind.NUMBER:
            return {"type": "number", **bounds}
        case Kind.CHOICE:
            return {"enum": list(key.choices)}
        case Kind.NAME:
            return {"type": "string", "pattern": _NAME_PATTERN}
        case Kind.TEXT | Kind.PATH | Kind.IMAGE:
            return {"type": "string", "minLength": 1}
        case _:
            return _form_of_many(key)


def _form_of_many(key: Key) -> dict[str, object]:
    """The forms that may be written in more than one way."""
    match key.kind:
        case Kind.DURATION:
            return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION_PATTERN}]}
        case Kind.EVERY | Kind.STATUS:
            pattern = _EVERY_PATTERN if key.kind is Kind.EVERY else _STATUS_PATTERN
            return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": pattern}]}
        case Kind.SIZE:
            return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _SIZE_PATTERN}]}
        case Kind.GPUS:
            item = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^(GPU-|MIG-|[0-9]+$)"}]}
            many = {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}
            return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, many]}
        case Kind.CPUS:
            numbers = {"type": "array", "items": {"type": "integer", "minimum": 0}}
            return {"anyOf": [numbers, {"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9, -]+$"}]}
        case Kind.ENV:
            return {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
        case Kind.ADDRESSES | Kind.MAIL | Kind.MAILS | Kind.SERVER | Kind.KEPT:
            return _form_of_address(key.kind)
        case Kind.SBATCH:
            return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
        case Kind.SECRETS:
            use = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}(=file)?$"}
            return {"anyOf": [{"type": "array", "items": use}, use]}
        case Kind.WORDS:
            return {"anyOf": [{"type": "array", "items": {"enum": list(key.choices)}}, {"enum": list(key.choices)}]}
        case Kind.COMMAND:
            words = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}
            return {"anyOf": [{"type": "string", "minLength": 1}, words]}
        case _:
            return {"anyOf": [_STRINGS, {"type": "string", "minLength": 1}]}


def _form_of_address(kind: Kind) -> dict[str, object]:
    patterns = {
        Kind.ADDRESSES: f"^(https?://|{SECRET}[A-Za-z_])",
        Kind.SERVER: r"^[A-Za-z0-9._-]+(:\d+)?$",
        Kind.KEPT: f"^{SECRET}[A-Za-z_]",
    }
    one: dict[str, object] = {"type": "string", "pattern": patterns.get(kind, "@")}
    return {"anyOf": [{"type": "array", "items": one}, one]} if kind in LIST_KINDS else one
