"""The rules of a box that is shared or rented, and how each is held: by refusal, by design, by a question, by a word.

Data for ``holdfast rules`` and docs/rules.md. A rule that nothing holds does not stand here. Pure.
"""

from __future__ import annotations

from holdfast.model.record import record
from holdfast.model.units import format_duration

from .rules import Rules

REFUSED, BUILT_IN, ASKED, TOLD = "refused", "built in", "asked", "told"
"""How a rule is held: what breaks it is not done; nothing can break it; a person says yes first; it is said."""


@record
class ConductRule:
    """One rule: what holds, how it is held, by what, and the page with the rest. `requirements` are of docs/."""

    name: str
    rule: str
    held: str
    by: str
    page: str
    requirements: tuple[str, ...]


CONDUCT: tuple[ConductRule, ...] = (
    ConductRule(
        "cards",
        "Use only cards that you hold, and all of those of a job or none.",
        REFUSED,
        "a lease under a kernel lock before the job starts; a card that anybody uses is not given",
        "leases.md",
        ("LEASE-01", "LEASE-02"),
    ),
    ConductRule(
        "others",
        "End only what is provably your own, never by a name or a pattern.",
        BUILT_IN,
        "signals go through pidfds of recorded processes; another person's run is asked for first",
        "containment.md",
        ("PROC-08", "XPORT-07"),
    ),
    ConductRule(
        "limits",
        "Stay within the time, memory and cards that were agreed on.",
        REFUSED,
        "preflight and the supervisor; the rules file of the box stands over a job file",
        "rules-file.md",
        ("ETIQ-09",),
    ),
    ConductRule(
        "priority",
        "Do not slow down others: low priority is the default.",
        BUILT_IN,
        "nice and I/O class of each job, and of our own copies",
        "limits.md",
        ("ETIQ-01",),
    ),
    ConductRule(
        "room",
        "Look whether there is room, in bytes and in files, before a job starts.",
        REFUSED,
        "preflight measures the real file systems, and the supervisor watches them",
        "preflight.md",
        ("PRE-06", "STOR-01"),
    ),
    ConductRule(
        "success",
        "Believe no exit code alone: a success has its results.",
        BUILT_IN,
        "declared artifacts are looked at after the end; what nobody saw is lost, never assumed",
        "exit-codes.md",
        ("POST-01",),
    ),
    ConductRule(
        "record",
        "Know what ran: code, configuration, environment, before it starts.",
        BUILT_IN,
        "run.json, copies and the difference from the commit, with their hashes",
        "run-directory.md",
        ("OBS-05",),
    ),
    ConductRule(
        "checkpoint",
        "Save, and begin with the newest good save, by the same command each time.",
        BUILT_IN,
        "the training library proves each save and takes the newest whole one",
        "checkpoints.md",
        ("CKPT-03",),
    ),
    ConductRule(
        "retries",
        "Repeat only what passes by itself, with the same configuration.",
        REFUSED,
        "retries are by class of the failure, bounded, with the job's hash compared",
        "retries.md",
        ("FAIL-16",),
    ),
    ConductRule(
        "experiment",
        "Never make an experiment smaller so that it fits.",
        BUILT_IN,
        "no setting of a training is changed; a lack of memory or disk is said with what to choose from",
        "retries.md",
        ("RAIL-16",),
    ),
    ConductRule(
        "secrets",
        "No secret in a command line, a log, a record or shared storage.",
        REFUSED,
        "secrets go by standard input to the account's own directory; records are redacted; code with keys is not sent",
        "places.md",
        ("XPORT-11", "XPORT-13"),
    ),
    ConductRule(
        "unreachable",
        "A box that does not answer is not dead, and what cannot be read is not clean.",
        BUILT_IN,
        "a run keeps its last sighting with its age; a gate that could not look stays shut",
        "places.md",
        ("XPORT-09",),
    ),
    ConductRule(
        "deletion",
        "Delete no data of a person without a yes.",
        ASKED,
        "rm, prune, queue cancel, queue clear name what goes and ask; a plan that changed is asked for anew",
        "places.md",
        ("RAIL-16",),
    ),
    ConductRule(
        "said",
        "Say saved, copied or home only after it was proven.",
        BUILT_IN,
        "each copy is hashed where it lands before it has its name",
        "home.md",
        ("VRFY-08", "POST-07"),
    ),
    ConductRule(
        "home",
        "Give up no box before all that matters is home, and loads.",
        REFUSED,
        "teardown names every condition that does not hold",
        "teardown.md",
        ("VRFY-01", "VRFY-06"),
    ),
    ConductRule(
        "approval",
        "What cannot be taken back is approved by a person, that one act, once.",
        ASKED,
        "the place's name typed at a terminal, or the hash of a plan that a person saw; kept before the verb is shown",
        "teardown.md",
        ("VRFY-01", "RAIL-16"),
    ),
    ConductRule(
        "provider",
        "End no rental by program.",
        BUILT_IN,
        "holdfast knows no rental's interface; it prints the provider's verb and checks afterwards",
        "teardown.md",
        ("VRFY-07",),
    ),
    ConductRule(
        "meter",
        "Nothing stops a meter by itself.",
        TOLD,
        "ls, show and patrol say what a rented place has cost and that it still bills; cost has the clocks",
        "cost.md",
        ("BSSH-07", "COST-02"),
    ),
    ConductRule(
        "budget",
        "Begin nothing new above the sum that you meant to spend.",
        REFUSED,
        "`cap` of the place: run, submit and sweep there are refused",
        "cost.md",
        ("COST-09",),
    ),
    ConductRule(
        "age",
        "Trust no old word about somebody else's system.",
        ASKED,
        "facts of a profile have a day and a source; one older than six months is verified again before a teardown",
        "home.md",
        ("PROF-08",),
    ),
)


def describe_site(rules: Rules) -> list[tuple[str, str]]:
    """What the rules file of this box says, as key and words; empty without one."""
    if not rules.sources:
        return []
    times = ("max_hold_s", "max_wait_s", "grace_max_s", "starve_after_s")
    said = [(name.removesuffix("_s"), format_duration(value)) for name in times if (value := getattr(rules, name))]
    plain = ("max_cards", "cards_per_user", "max_cards_per_user", "hours_per_week", "hours_per_week_max")
    said += [(name, f"{value:g}") for name in plain if (value := getattr(rules, name)) is not None]
    said.append(("nice", str(rules.nice)))
    return said
