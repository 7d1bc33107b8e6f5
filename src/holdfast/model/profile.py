"""Profiles: what is known of a provider or kind of machine, as data (docs/profiles.md).

A statement about someone else's system is perishable: it carries the day on which it was verified and its source.
"""

from __future__ import annotations

import re

from .pattern import compile_later
from .record import field, record

PROFILE_NAME = compile_later(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
VARIABLES = ("DATA_DIR", "DURABLE_DIR", "SCRATCH", "HF_HOME", "PROXY_HOOK", "CRED_FILE", "DETACH")
"""What jobs and hooks get."""
HOOK = "PROXY_HOOK"
"""A line of sh, and so of the user's own files alone."""
PLAIN_VARIABLES = (HOOK, "DETACH")
"""Those that are no path."""
YES, NO, DEPENDS = "yes", "no", "depends"
"""Whether a tier survives a verb. ``depends`` is treated as no until it was measured, and said so."""
STALE_DAYS = 183
"""A fact that was verified longer ago is stale: a warning, and re-verified before anything irreversible."""


@record
class Fact:
    """One statement, the day it was verified (``YYYY-MM-DD``) and where it is from (a page, a measurement)."""

    text: str
    verified_on: str
    source: str


@record
class Tier:
    """One kind of storage of a place.

    `paths` are beginnings of absolute paths, with ``~`` and ``$NAME`` as the box has them. `survives` maps each verb of
    the profile to ``yes``, ``no`` or ``depends``. `shared_with` says which machines see it (``region``, ``cluster``;
    empty: this one). Caps are of the whole tier: None is not known. `bills_after` names the verbs after which it goes
    on being billed.
    """

    name: str
    paths: tuple[str, ...]
    survives: dict[str, str]
    shared_with: str = ""
    cap_bytes: int | None = None
    cap_inodes: int | None = None
    bills_after: tuple[str, ...] = ()
    note: str = ""


@record
class EndVerb:
    """One way to end the use of a machine, as the provider calls it.

    `how` is what a person does, word for word, with ``{host}`` and ``{place}`` filled in: a command of the provider's
    own, or the way through its pages. `destroys`, `keeps` and `still_bills` are for people. `stops_meter` is None where
    it is not known.
    """

    name: str
    how: str
    stops_meter: bool | None
    irreversible: bool
    destroys: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    still_bills: tuple[str, ...] = ()


@record
class Clock:
    """A danger clock: `after_s` seconds after `begins` (``stopped``, ``idle``, ``started``, ...) `what` happens."""

    name: str
    begins: str
    after_s: float
    what: str


@record
class Profile:
    """A kind of place, with what it inherits filled in.

    `facts` maps a dotted key (``storage.inode_cap``, ``tiers.data``) to when and where it was verified; `origins` maps
    it to the file that said it. `metered` is ``money``, ``quota`` or ``none``. `grace_s` is the time between the notice
    of an interruption and the kill (0: no notice; None: not known), `notice` the signal or endpoint that tells, and
    `interruptions_s` the mean time between interruptions. `variables` are what jobs and hooks get (DATA_DIR,
    DURABLE_DIR, SCRATCH, HF_HOME, PROXY_HOOK, CRED_FILE, DETACH). `runtime_cap_s` is the longest time that one start
    lasts. `home` is the home directory of the login there (empty: not known); where it is known, ~ at the beginning of
    tiers and variables is filled in. `sections` holds the eight sections' text for people, by name.
    """

    name: str
    title: str
    inherits: str = ""
    kind: str = "ssh"
    metered: str = "none"
    meter_stop: str = ""
    detach: str = "holdfast"
    spot: bool | None = None
    grace_s: float | None = None
    notice: str = ""
    interruptions_s: float | None = None
    runtime_cap_s: float | None = None
    egress_per_gb: float | None = None
    mirror_needed: bool | None = None
    max_cuda: str = ""
    local_nvme: bool | None = None
    home: str = ""
    currency: str = ""
    tiers: tuple[Tier, ...] = ()
    verbs: tuple[EndVerb, ...] = ()
    clocks: tuple[Clock, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
