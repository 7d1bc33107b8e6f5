"""What goes into one attempt's container: environment, mounts, cards, user, limits. Loaded for images alone."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.container.command import (
    PROXIES,
    CardsInside,
    ContainerPlan,
    DeviceGrant,
    find_unbindable,
    find_unwritable,
    goes_into_apptainer,
    name_container,
)
from holdfast.core.container.references import Bind, find_inside, read_bind
from holdfast.core.job.environment import LIBRARY, PATH
from holdfast.core.job.secret_names import read_uses
from holdfast.host.container.docker import adds_proxies
from holdfast.host.container.runtime import find_program
from holdfast.host.files.secret_files import secrets_directory
from holdfast.host.lease.area import open_area
from holdfast.host.process.processes import user_name
from holdfast.model.container import (
    FOR_FILES,
    INNER_HOME,
    INNER_ROOM,
    ContainerUser,
    EntryPoint,
    ResolvedImage,
    RuntimeName,
)
from holdfast.model.errors import HoldfastError, PreflightFailed
from holdfast.model.gpu import InventorySource
from holdfast.model.profile import HOOK, VARIABLES
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.gpu import Inventory
    from holdfast.model.job import JobSpec, Limits
    from holdfast.model.lease import LeasedDevice

CARDS, NODES = "cards", "nodes"
"""Files of the room: what CUDA_VISIBLE_DEVICES has to be inside, and which device files of cards may be there."""
HOME = "/tmp"  # noqa: S108 - inside; the account's own home stays outside
COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
CDI_PLACES = ("/etc/cdi", "/var/run/cdi")
"""Source: CNCF container device interface, "How to configure CDI"."""
TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
NO_CARDS = "void"
"""Source: NVIDIA Container Toolkit, NVIDIA_VISIBLE_DEVICES: no card, whatever the image says."""
READ_ALONE = ("DATA_DIR", "CRED_FILE")
"""Of a profile: what a job only reads."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - measured, not written to


def plan_container(  # noqa: PLR0917 - all that a container is made of, once
    context: SupervisorContext,
    resolved: ResolvedImage,
    devices: tuple[LeasedDevice, ...],
    inventory: Inventory,
    values: Mapping[str, str],
    room: str,
) -> ContainerPlan:
    """Everything that the runtime is told. `values` are the job's own environment.

    Raises:
        PreflightFailed: the leased cards cannot be put into it.
    """
    spec, wish = context.spec, context.spec.container
    cards = choose_cards(devices, inventory, resolved, context.environ)
    host_user = wish.user is ContainerUser.HOST
    user, groups = choose_user(resolved) if host_user else ("", ())
    kept = resolved.entrypoint if wish.entrypoint is EntryPoint.KEEP else ()
    binds = list_binds(context, room, holds_cards=bool(devices))
    values = {**find_profile_variables(context, resolved, binds), **values}
    environment = _finish_environment(context, resolved, devices, values, host_user=host_user)
    proxies = resolved.runtime is RuntimeName.DOCKER and adds_proxies(context.environ)
    if proxies:
        # Nothing of the caller's goes in that the job does not name; what the image itself sets stands.
        theirs = resolved.environment or {}
        environment = {name: theirs[name] for name in sorted(PROXIES & theirs.keys())} | environment
    _refuse_unsayable(resolved.runtime, environment, binds)
    return ContainerPlan(
        runtime=resolved.runtime,
        name=name_container(context.run_id, context.attempt, context.run_dir),
        run_id=context.run_id,
        attempt=context.attempt,
        run_dir=context.run_dir,
        reference=resolved.reference,
        command=(*kept, *spec.command),
        workdir=spec.workdir,
        environment=environment,
        binds=binds,
        cards=cards,
        shm_bytes=wish.shm_bytes or _measure_shm(),
        user=user,
        groups=groups,
        rootless=resolved.rootless,
        init=wish.init and resolved.init,
        network=wish.network,
        limits=_choose_limits(spec, resolved),
        ulimits=_list_ulimits(spec, resolved),
        pty=spec.pty,
        pid_file=f"{room}/init.pid" if resolved.runtime is RuntimeName.PODMAN else "",
        entrypoint=wish.entrypoint,
        adds_proxies=proxies,
    )


def _choose_limits(spec: JobSpec, resolved: ResolvedImage) -> Limits | None:
    """What the runtime is to hold: not what it would leave out, or refuse."""
    if not resolved.own_group:
        return None
    limits, unheld = spec.limits, resolved.unheld
    return replace(
        limits,
        memory_bytes=None if "memory" in unheld else limits.memory_bytes,
        swap_bytes=None if "swap" in unheld else limits.swap_bytes,
        cpus=None if "cpus" in unheld else limits.cpus,
        cpu_weight=None if "cpu_weight" in unheld else limits.cpu_weight,
        tasks=None if "tasks" in unheld else limits.tasks,
    )


def choose_user(resolved: ResolvedImage) -> tuple[str, tuple[str, ...]]:
    """This account as the runtime is to be told of it: ``uid:gid``, and its further groups.

    Below a rootless Docker number 0 is the account that it runs as, and every other a subordinate one that may write to
    nothing of its own; what else Podman is told keeps the number. Source: docker, "Rootless mode"; user_namespaces(7).
    """
    if resolved.runtime is RuntimeName.DOCKER and resolved.rootless:
        return "0:0", ()
    return f"{os.getuid()}:{os.getgid()}", tuple(str(group) for group in os.getgroups() if group != os.getgid())


def build_client_environment(plan: ContainerPlan, caller: Mapping[str, str]) -> dict[str, str]:
    """The environment of the runtime's client that stays beside the job: the caller's, with the marks of the run.

    Apptainer has the job's from there, too, under other names; of its caller's own what goes inside stays out. Source:
    apptainer, internal/pkg/util/env/clean.go.
    """
    found = {**caller, **{name: plan.environment[name] for name in ("HOLDFAST_RUN_ID", "HOLDFAST_ATTEMPT")}}
    if plan.runtime not in FOR_FILES:
        return found
    found = {name: value for name, value in found.items() if not goes_into_apptainer(name)}
    prefix = f"{plan.runtime.value.upper()}ENV_"
    inside = {(INNER_HOME if name == "HOME" else name): value for name, value in plan.environment.items()}
    return found | {f"{prefix}{name}": value for name, value in inside.items()}


def _refuse_unsayable(runtime: RuntimeName, environment: Mapping[str, str], binds: tuple[Bind, ...]) -> None:
    """What cannot be said in the runtime's own notation."""
    if paths := find_unbindable(runtime, (path for bind in binds for path in (bind.source, bind.target))):
        words = f"{paths[0]}: {runtime.value} takes no path with a comma or a colon"
        raise PreflightFailed(words, hint="rename it, or take podman or docker")
    if runtime in (RuntimeName.DOCKER, RuntimeName.PODMAN) and (names := find_unwritable(environment)):
        words = f"{', '.join(names)}: of a name that {runtime.value} itself obeys it takes one line without quotes"
        raise PreflightFailed(words, hint="write the value on one line, or have it under another name")


def _finish_environment(
    context: SupervisorContext,
    resolved: ResolvedImage,
    devices: tuple[LeasedDevice, ...],
    values: Mapping[str, str],
    *,
    host_user: bool,
) -> dict[str, str]:
    """The declared environment: the job's, and what an account needs; the image's own stands behind it."""
    found = {"NVIDIA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices) or NO_CARDS}
    if host_user:
        found |= {"HOME": HOME, "USER": user_name(os.getuid()), "LOGNAME": user_name(os.getuid())}
    if "HOLDFAST_LEASE_DIR" in context.environ:
        found["HOLDFAST_LEASE_DIR"] = context.environ["HOLDFAST_LEASE_DIR"]
    if "HOLDFAST_MACHINE_ID" in context.environ:
        found["HOLDFAST_MACHINE_ID"] = context.environ["HOLDFAST_MACHINE_ID"]
    found |= values
    # No value of the job's own may undo the lease: with nvidia's runtime this variable is the choice of cards.
    found["NVIDIA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in devices) or NO_CARDS
    theirs = (resolved.environment or {}).get(PATH, "")
    if theirs and found.get(LIBRARY) and found.get(PATH) == found[LIBRARY]:
        found[PATH] = f"{theirs}:{found[LIBRARY]}"
    return found


def find_profile_variables(
    context: SupervisorContext, resolved: ResolvedImage, binds: tuple[Bind, ...]
) -> dict[str, str]:
    """What of the variables of the place's profile holds inside: a directory that is bound there, by its path there.

    One that is only to be read is promised as DATA_DIR alone. What the image itself sets stands.
    """
    if context.profile is None:
        return {}
    found: dict[str, str] = {}
    for name in VARIABLES:
        value = context.environ.get(name)
        if value is None or name == HOOK or name in (resolved.environment or {}):
            continue
        inside = find_inside(value, binds, to_write=name not in READ_ALONE) if value.startswith("/") else value
        found |= {} if inside is None else {name: inside}
    return found


def list_binds(context: SupervisorContext, room: str, *, holds_cards: bool) -> tuple[Bind, ...]:
    """What of the box is inside, each at its own path: code and run directory to write, data and inputs to read."""
    spec = context.spec
    found = {spec.workdir: Bind(spec.workdir, spec.workdir, writable=True)}
    readable = (*spec.inputs, *([spec.config] if spec.config else []), *spec.data)
    for path in readable:
        path = os.path.normpath(os.path.join(spec.workdir, path))  # noqa: PLW2901 - as the job resolves it
        inside = path.startswith(f"{spec.workdir}/") and path not in spec.data
        if os.path.exists(path) and not inside:
            found[path] = Bind(path, path)
    for kept in (spec.checkpoints.mirror, spec.caches):
        if kept is not None and os.path.isdir(kept):
            found[kept] = Bind(kept, kept, writable=True)
    if context.library is not None:
        found[context.library] = Bind(context.library, context.library)
    for use in read_uses(spec.secrets):
        if use.as_file:
            path = f"{secrets_directory()}/{use.name}"
            found[path] = Bind(path, path)
    for path in _list_areas(context) if holds_cards else ():
        found[path] = Bind(path, path, writable=True)
    for text in spec.container.binds:
        bind = read_bind(text)
        found[bind.target] = bind
    found[context.run_dir] = Bind(context.run_dir, context.run_dir, writable=True)
    found[INNER_ROOM] = Bind(room, INNER_ROOM, writable=True)
    return tuple(found[target] for target in sorted(found, key=lambda path: (path.count("/"), path)))


def _list_areas(context: SupervisorContext) -> tuple[str, ...]:
    try:
        return tuple(open_area(context.rules.lease_dir, environ=context.environ).directories)
    except HoldfastError:
        return ()


def choose_cards(
    devices: tuple[LeasedDevice, ...], inventory: Inventory, resolved: ResolvedImage, environ: Mapping[str, str]
) -> CardsInside:
    """How exactly the leased cards are put into a container of this runtime.

    Raises:
        PreflightFailed: there is no way here.
    """
    uuids = tuple(device.uuid for device in devices)
    if not devices:
        return CardsInside()
    if inventory.source is InventorySource.SIMULATED:
        return CardsInside(DeviceGrant.SIMULATED, uuids)
    if resolved.runtime not in (RuntimeName.DOCKER, RuntimeName.PODMAN):
        return CardsInside(DeviceGrant.VARIABLE, uuids)
    if resolved.runtime is RuntimeName.DOCKER and any(find_program(name, environ) for name in TOOLKIT):
        return CardsInside(DeviceGrant.GPUS, uuids)
    if resolved.runtime is RuntimeName.PODMAN and _has_cdi():
        return CardsInside(DeviceGrant.CDI, uuids)
    if any(device.slice_uuid for device in devices):
        hint = "install the NVIDIA Container Toolkit; for podman: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        raise PreflightFailed(
            f"{resolved.runtime.value} cannot be given a slice of a card without the toolkit", hint=hint
        )
    minors = {card.uuid: card.minor for card in inventory.cards}
    nodes = [f"/dev/nvidia{minors.get(device.card_uuid)}" for device in devices]
    missing = [node for node in (*nodes, COMMON_NODES[0]) if not os.path.exists(node)]
    if missing:
        words = f"{', '.join(missing)} is not on this box, so the leased cards cannot be put into a container"
        raise PreflightFailed(words, hint="install the NVIDIA Container Toolkit, or see whether the driver is loaded")
    return CardsInside(DeviceGrant.NODES, uuids, (*nodes, *(node for node in COMMON_NODES if os.path.exists(node))))


def _has_cdi() -> bool:
    for place in CDI_PLACES:
        try:
            if any("nvidia" in name for name in os.listdir(place)):
                return True
        except OSError:
            continue
    return False


def _measure_shm() -> int | None:
    """As large as the box's own: a tmpfs takes only what is written."""
    try:
        facts = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize or None


def _list_ulimits(spec: JobSpec, resolved: ResolvedImage) -> tuple[tuple[str, str], ...]:
    """Our own limits, as a job without a container has them; the runtimes' defaults may be more than a box allows."""
    files_soft, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if spec.limits.open_files is not None:
        files_soft = files_hard = spec.limits.open_files
    found = [("nofile", (files_soft, files_hard)), ("memlock", resource.getrlimit(resource.RLIMIT_MEMLOCK))]
    if resolved.runtime is RuntimeName.PODMAN:
        # It lowers its own to this number first, and may be unable to raise it again. Source: podman 4.3, early_init.
        most = _read_pid_max()
        soft, hard = (most if value < 0 else min(value, most) for value in resource.getrlimit(resource.RLIMIT_NPROC))
        found.append(("nproc", (soft, hard)))
    return tuple((name, f"{soft}:{hard}") for name, (soft, hard) in found)


def _read_pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        return int(file.read())
