"""Checks of what outlives the end of a rented box, by the profile of the place (PRE-15, SPOT-01, SPOT-07).

What the job itself declares to be kept (its mirror, its results, its DURABLE_DIR) is refused where it goes with the
box; where it declares nothing a person is told what to pull. ``depends`` is no for what is declared, and a warning for
the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.agent.checks.context import CheckContext, failed, passed, unknown, warned
from holdfast.core.job.job_paths import UnknownVariableError, resolve_path
from holdfast.core.profile.survive import Survival, list_lasting, survives
from holdfast.host.files.disks import DiskUnreadable, find_existing, measure_space
from holdfast.host.files.filesystems import read_mounts
from holdfast.host.job.measured_saves import find_save_s
from holdfast.model.finding import Finding
from holdfast.model.profile import NO, Profile
from holdfast.model.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

DURABLE = "DURABLE_DIR"
MIRROR = "checkpoints.mirror"
LABELS = {DURABLE: "lasting.durable", MIRROR: "lasting.mirror", "results.to": "lasting.results"}
PROBE = b"holdfast looks whether this directory takes files\n"


def check_lasting(situation: CheckContext) -> Iterator[Finding]:
    """What is to be kept lies where the act that ends the meter does not reach, and that place takes files (PRE-15)."""
    profile = situation.profile
    if profile is None or not profile.meter_stop:
        return
    resolve = _resolver(situation)
    declared = list(_list_declared(situation))
    lasting = False
    for name, path in declared:
        found = survives(profile, path, profile.meter_stop, resolve)
        finding = _judge_declared(profile, name, path, found, resolve)
        lasting = lasting or (finding.level.value == "pass" and name == MIRROR)
        yield finding
    if not lasting:
        yield from _judge_checkpoints(situation, profile, resolve)


def _list_declared(situation: CheckContext) -> Iterator[tuple[str, str]]:
    if situation.spec.checkpoints.mirror is not None:
        yield MIRROR, situation.spec.checkpoints.mirror
    if situation.spec.results.to is not None:
        yield "results.to", situation.spec.results.to
    if durable := situation.job_environ.get(DURABLE):
        yield DURABLE, situation.in_workdir(os.path.expanduser(durable))


def _judge_declared(profile: Profile, name: str, path: str, found: Survival, resolve: Callable[[str], str]) -> Finding:
    label = LABELS[name]
    if not found.proven:
        return failed(label, path, f"{name} {_describe(profile, found)}", _advise(profile, resolve))
    try:
        space = measure_space(path, read_mounts())
        if space.is_memory:
            seen = f"{name} lies in memory ({space.kind} on {space.mount_point}), which no {profile.meter_stop} leaves"
            return failed(label, path, seen, _advise(profile, resolve))
        _write_probe(find_existing(path))
    except DiskUnreadable as error:
        return unknown(label, path, f"not told: {error.strerror}", "see whether its server answers")
    except OSError as error:
        seen = f"{name} outlives {profile.meter_stop}, and does not take files: {error.strerror}"
        return failed(label, path, seen, "mount it so that this account can write, or name another directory")
    return passed(label, path, f"{name} outlives {profile.meter_stop} ({found.tier}) and takes files")


def _judge_checkpoints(situation: CheckContext, profile: Profile, resolve: Callable[[str], str]) -> Iterator[Finding]:
    spec, verb = situation.spec, profile.meter_stop
    places = [situation.in_workdir(path) for path in spec.disk.paths] or [situation.runs_place]
    makes_some = spec.checkpoints.every is not None or spec.disk.checkpoint_bytes > 0 or bool(spec.disk.paths)
    for path in places:
        found = survives(profile, path, verb, resolve)
        if found.proven:
            yield passed("lasting.checkpoints", path, f"outlives {verb} ({found.tier})")
        elif makes_some and found.answer == NO and (there := _list_there(profile, resolve)):
            remedy = f"checkpoints.mirror: {there[0]}/checkpoints in the job, or `root` of the place below {there[0]}"
            yield failed("lasting.checkpoints", path, f"checkpoints there: {_describe(profile, found)}", remedy)
        else:
            seen = f"checkpoints and results there: {_describe(profile, found)}"
            remedy = f"pull the run before {verb} (`holdfast pull`); {_advise(profile, resolve)}"
            yield warned("lasting.checkpoints", path, seen, remedy)


def _describe(profile: Profile, found: Survival) -> str:
    where = f"the tier {found.tier}" if found.tier else "no tier that the profile knows"
    answer = f"does not outlive {found.verb}" if found.answer == NO else f"may not outlive {found.verb}"
    why = f": {found.why}" if found.why and found.tier else ""
    return f"{answer}: it is in {where} of {profile.name}{why}"


def _list_there(profile: Profile, resolve: Callable[[str], str]) -> list[str]:
    """The directories of tiers that last, as far as they are on this box."""
    paths = [resolve(path) for tier in list_lasting(profile, profile.meter_stop) for path in tier.paths]
    return [path for path in paths if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)]


def _advise(profile: Profile, resolve: Callable[[str], str]) -> str:
    """Where it would be safe: what is here, else what the profile knows."""
    if there := _list_there(profile, resolve):
        return f"{', '.join(there)} outlives {profile.meter_stop}"
    tiers = list_lasting(profile, profile.meter_stop)
    named = [f"{tier.name} ({', '.join(tier.paths) or 'at a path that the profile does not know'})" for tier in tiers]
    if named:
        return f"{', '.join(named)} would outlive {profile.meter_stop}, and is not on this box"
    return f"nothing on this box outlives {profile.meter_stop} for certain"


def _resolver(situation: CheckContext) -> Callable[[str], str]:
    """The real path of one as it is written; one of a variable that is not set stays as it is, below nothing."""
    home = situation.job_environ.get("HOME", "")

    def expand(path: str) -> str:
        return home + path[1:] if home and (path == "~" or path.startswith("~/")) else os.path.expanduser(path)

    def resolve(path: str) -> str:
        try:
            return os.path.realpath(resolve_path(path, "/", situation.job_environ, expand))
        except UnknownVariableError:
            return path

    return resolve


def _write_probe(directory: str) -> None:
    """A file of a name that nobody can foresee comes and goes.

    Raises:
        OSError: it cannot be written there.
    """
    path = f"{directory}/.holdfast-probe-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, PROBE)
            os.fsync(descriptor)
        finally:
            # Over a network a full disk may be told only here.
            os.close(descriptor)
    finally:
        os.unlink(path)


def check_interruption(situation: CheckContext) -> Iterator[Finding]:
    """Whether a last save fits between the notice of an interruption and its end, or the timer is all there is."""
    profile, spec = situation.profile, situation.spec
    if profile is None or profile.grace_s is None or profile.spot is False:
        return
    save_s = None if situation.run_dir is None else find_save_s(situation.run_dir)
    if profile.grace_s == 0:
        seen = "an interruption comes without notice: no last save, the timer only"
    elif save_s is not None and save_s > profile.grace_s:
        grace, save = format_duration(profile.grace_s), format_duration(save_s)
        seen = f"an interruption gives {grace}, and a save took {save}: no last save fits, the timer only"
    else:
        known = "" if save_s is None else f", and a save took {format_duration(save_s)}"
        seen = f"an interruption gives {format_duration(profile.grace_s)}{known}: timer and a last save"
        yield passed("lasting.interruption", profile.name, seen)
        return
    if spec.checkpoints.every is not None:
        yield passed("lasting.interruption", profile.name, f"{seen} (checkpoints.every is {spec.checkpoints.every})")
    else:
        remedy = "checkpoints: every: auto in the job file, which goes by how long a save takes"
        yield warned("lasting.interruption", profile.name, seen, remedy)


def check_runtime_cap(situation: CheckContext) -> Iterator[Finding]:
    """The longest time that one start lasts at this place is as long as the job may take (SPOT-07)."""
    profile, spec = situation.profile, situation.spec
    if profile is None or profile.runtime_cap_s is None:
        return
    limits = (spec.expected_s, spec.timeouts.run_s, spec.timeouts.total_s)
    wanted = max((limit for limit in limits if limit is not None), default=None)
    cap = format_duration(profile.runtime_cap_s)
    if wanted is None or wanted <= profile.runtime_cap_s:
        yield passed("lasting.runtime_cap", profile.name, f"one start lasts {cap} at most")
        return
    seen = f"one start lasts {cap} at most; the job may take {format_duration(wanted)}"
    remedy = "make sure that it writes checkpoints and resumes: the same command goes on with it after each start"
    yield warned("lasting.runtime_cap", profile.name, seen, remedy)
