"""Why Slurm has not started a job, in words, and what whoever waits can change. Pure.

Source: squeue(1), JOB REASON CODES; job_reason_string of Slurm 20.02 (common/slurm_protocol_defs.c) to 25.05
(common/job_state_reason.c), where the limits of accounts (Assoc...) and of QOS have about a hundred names of a few
forms. A reason that is not in the tables is shown as it is.
"""

from __future__ import annotations

import re

NEVER = {
    "PartitionTimeLimit": "ask for less time, or another partition: `sinfo -s` shows the limits",
    "PartitionNodeLimit": "ask for fewer nodes, or another partition: `sinfo -s` shows the limits",
    "BadConstraints": "no node has all of what it asks for: `sinfo -N -o '%N %c %m %G %f'`",
    "AccountNotAllowed": "the partition does not take this account; choose another with account=NAME",
    "Job's account not known": "the partition takes certain accounts only; choose one with account=NAME",
    "Job's account not permitted to use this partition": "choose another with account=NAME, or another partition",
    "Job's QOS not permitted to use this partition": "choose another with qos=NAME, or another partition",
    "InvalidAccount": "choose another with account=NAME",
    "InvalidQOS": "choose another with qos=NAME",
    "QOSNotAllowed": "the partition does not take this QOS; choose another with qos=NAME",
    "QOSMaxWallDurationPerJobLimit": "ask for less time, or another QOS",
    "AssocMaxWallDurationPerJobLimit": "ask for less time",
    "QOSMaxGRESPerJob": "ask for fewer cards, or another QOS",
    "QOSMaxNodePerJobLimit": "ask for fewer nodes, or another QOS",
    "QOSMaxCpuPerJobLimit": "ask for fewer processors, or another QOS",
    "QOSMaxMemoryPerJob": "ask for less memory, or another QOS",
}
"""Reasons for which a new job waits for ever unless somebody changes a limit."""

ENDS = {
    "JobLaunchFailure": "its node could not begin it: see whether the runs root is there too, as every node must see it"
}
"""Reasons of a job that is over."""

WAITS = {
    "Priority": "jobs of a higher priority go first; less time or fewer cards fit into gaps sooner",
    "Resources": "it is next, and what it asks for is in use; less time or fewer cards may fit sooner",
    "Nodes required for job are DOWN": (
        "nodes are down, drained or kept for others: another partition or constraint, or wait; `sinfo -R` says why"
    ),
    "ReqNodeNotAvail": "nodes that it asks for are down or reserved; leave nodelist out, or see `sinfo -R`",
    "NodeDown": "a node that it asks for is down; leave nodelist out, or see `sinfo -R`",
    "PartitionDown": "its partition is down; another one, or wait",
    "PartitionInactive": "its partition starts no jobs; another one, or wait",
    "BeginTime": "its earliest start has not come; after a requeue Slurm waits for the node to forget the job (2 min)",
    "Cleaning": "it was put back, and its nodes are still cleaning up",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": (
        "the job that it waits for did not end as it had to: restart that one, then this: `holdfast stop`, "
        "`holdfast restart`"
    ),
    "JobHeldUser": "somebody of this account holds it: `holdfast queue resume RUN`, or `scontrol release JOB`",
    "JobHeldAdmin": "an administrator holds it; ask who runs the cluster",
    "job requeued in held state": "somebody put it back and holds it: `scontrol release JOB`",
    "JobHoldMaxRequeue": "Slurm put it back too often and holds it: see its nodes, then `scontrol release JOB`",
    "launch failed requeued held": "it could not be launched, and is held: see its nodes, then `scontrol release JOB`",
    "JobArrayTaskLimit": "as many tasks of its array run as may run at once",
    "Licenses": "a license that it asks for is in use",
    "Reservation": "its reservation has not begun, or is full",
    "ReservationDeleted": "its reservation is gone: `holdfast stop` ends it; submit it without",
    "Prolog": "its nodes are being made ready",
    "MaxJobsPerAccount": "the account runs as many jobs as it may",
    "AssociationJobLimit": "the account runs as many jobs as it may",
    "QOSJobLimit": "the QOS runs as many jobs as it may; another QOS, or wait",
}
_LIMIT = re.compile(r"(Assoc|QOS|MaxTRES)(Grp|Max|Min)?(.*)")
_WHAT = (
    (re.compile(r"GRES", re.IGNORECASE), "cards"),
    (re.compile(r"Billing"), "billing units"),
    (re.compile(r"Wall"), "time"),
    (re.compile(r"Mem", re.IGNORECASE), "memory"),
    (re.compile(r"Cpu", re.IGNORECASE), "processors"),
    (re.compile(r"Node"), "nodes"),
    (re.compile(r"Jobs?(PerUser)?Limit|Submit"), "jobs"),
)


def name_reason(reason: str) -> str:
    """A reason without what follows its name; the names are those of the tables here."""
    return re.split(r"\(|, ", reason, maxsplit=1)[0].strip().replace("_", " ")


def advise(reason: str) -> str:
    """What a reason means and what to change, in words; empty for one that is not known."""
    name = name_reason(reason)
    if name in NEVER:
        return f"it never starts so: {NEVER[name]}"
    if name in WAITS:
        return WAITS[name]
    found = _LIMIT.match(name)
    if found is None or not found[2]:
        return ""
    whose = "the QOS" if found[1] == "QOS" else "the account"
    what = next((words for pattern, words in _WHAT if pattern.search(found[3])), "what it counts")
    if found[2] == "Min":
        return f"it never starts so: {whose} wants a job to ask for more {what}"
    if found[2] == "Grp":
        return f"all jobs of {whose} together use as much {what} as they may; wait, ask for less, or use another"
    if "PerJob" in found[3] and "Mins" not in found[3] and "Minutes" not in found[3]:
        return f"it never starts so: it asks for more {what} than {whose} gives one job"
    return f"its user has as much {what} as {whose} gives; wait for other jobs, ask for less, or use another"
