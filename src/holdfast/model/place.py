"""Places: what ``places.toml`` configures of a machine where jobs run, and what was measured there."""

from __future__ import annotations

import re

from .identity import BoxIdentity
from .record import field, record
from .slurm import SlurmFacts

LOCAL = "local"
"""The reserved name of the machine where the command is typed."""
PLACE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")


@record
class Rent:
    """What a person wrote of a rented place, table ``[NAME.rent]``: its cost, since when, where its end is seen.

    `since` (ISO UTC) is when the provider began to bill, `rate` the price of an hour in `currency`. `cap` is the sum
    above which nothing new is begun there. `region` is of its shared volumes. `also` are things that are billed on
    their own (volume, address, snapshot, image), each with its monthly price in words. `status_command` (words, run at
    the desk) or `status_url` tells whether the machine still exists; secrets stand in neither.
    """

    since: str = ""
    rate: float | None = None
    currency: str = ""
    cap: float | None = None
    region: str = ""
    also: tuple[str, ...] = ()
    status_command: tuple[str, ...] = ()
    status_url: str = ""


@record
class Place:
    """A machine where jobs run, as ``places.toml`` (or an alias of ``~/.ssh/config``) has it; nothing secret.

    `host` is what ssh(1) takes: an alias or ``user@name``; None: this machine. `root` is the runs root there (absolute,
    or beginning with ``~/``; None: what the box's own command line would choose), `python` its interpreter (None: one
    is looked for). `setup` are lines of sh that run before a job there. `env_from` is ``login`` where a job gets the
    environment of a login shell, else ``none``. `configured` is False for a bare alias. `slurm` are options of sbatch
    that each job there has, unless it says otherwise. `profile` names what kind of machine it is, `rent` what it costs.
    """

    name: str
    kind: str = "ssh"
    host: str | None = None
    port: int | None = None
    root: str | None = None
    python: str | None = None
    setup: tuple[str, ...] = ()
    env_from: str = "none"
    configured: bool = True
    slurm: dict[str, str] = field(default_factory=dict)
    profile: str = ""
    rent: Rent | None = None


MISSING, UNREADABLE = "missing", "unreadable"
"""Types of a disk of which nothing can be said: its path is not there, or nobody may look."""


@record
class DiskFacts:
    """One file system: sizes in bytes, counts of inodes; None where it does not tell."""

    path: str
    type: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    writable: bool | None = None


@record
class CardFacts:
    """One card as the box's driver names it; memory in bytes."""

    index: int
    name: str
    memory_bytes: int | None = None
    simulated: bool = False


@record
class BoxFacts:
    """What the entry ``probe`` measured on a box: the content of the desk's ``facts.json`` for the place.

    `python` is the interpreter's path there, `root` the absolute runs root, `bundle` the hash of the bundle that
    answered. `flock` is ``taken`` or ``unlockable`` on the runs root, `pidfd` how processes are held (``native``,
    ``syscall``, ``none``). `tools` are paths by name (tar, rsync, git ...; absent: not there). `limits` are
    those of the login in words of ``ulimit`` (None: unlimited). `clock_epoch_s` is the box's clock and `measured_at`
    (ISO UTC) the desk's: `clock_ahead_s` is how far the box is ahead, None until the desk has compared. `warnings` are
    for people. `cpus` and `memory_bytes` are the machine's; `cpu_limit` (cores, 1.5 is one and a half),
    `memory_limit_bytes` and `task_limit` what the control groups around the login allow of it (None: no limit found).
    `login_path` is the PATH of a login shell there, of a place whose jobs get such an environment.
    `slurm` is what was measured of the Slurm of a place of that kind. `profile_disks` are those that the place's
    profile names; of type ``missing`` where the path is not there.
    """

    measured_at: str
    uid: int
    user: str
    home: str
    root: str
    python: str
    python_version: str
    bundle: str
    box: BoxIdentity
    clock_epoch_s: float
    clock_ahead_s: float | None = None
    kernel: str = ""
    shell: str = ""
    flock: str = ""
    pidfd: str = ""
    containment: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None
    task_limit: int | None = None
    driver: str | None = None
    cards: tuple[CardFacts, ...] = ()
    disks: tuple[DiskFacts, ...] = ()
    tools: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    login_path: str | None = None
    slurm: SlurmFacts | None = None
    profile_disks: tuple[DiskFacts, ...] = ()
