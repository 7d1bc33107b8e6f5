"""The command lines by which a container is created, as argument vectors. Pure.

No word here is ever read by a shell. A variable's value stands in none of them (CTR-12): the runtime's client has it in
its own environment and is given the name alone, ``--env NAME``; what it would obey itself it reads from its standard
input, as an env file. Source: docker-create(1), podman-create(1), apptainer-exec(1).
"""

from __future__ import annotations

import json
import zlib
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.model.container import (
    ENTER_SH,
    FOR_FILES,
    INNER_ROOM,
    LABEL_ATTEMPT,
    LABEL_DIRECTORY,
    LABEL_RUN,
    EntryPoint,
    RuntimeName,
)
from holdfast.model.record import record

from .references import Bind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.model.job import Limits

SHELL = "/bin/sh"
ENTER = f"{INNER_ROOM}/{ENTER_SH}"
ENV_FILE = "/dev/stdin"
HOST_NETWORK, NO_NETWORK = "host", "none"
CPU_PERIOD_SHARES = 1024
"""What docker calls 1024 shares is a weight of 100. Source: runc, ConvertCPUSharesToCgroupV2Value."""
# Variables by which the clients of the runtimes, or the loader, steer themselves: a job's value of one goes into the
# container and never into the client. Source: docker(1), podman(1), apptainer's "environment and metadata";
# Go, package runtime, "Environment Variables".
CLIENTS_OWN = frozenset(
    {"HOME", "PATH", "USER", "LOGNAME", "TMPDIR", "SHELL", "TERM", "TZ", "LANG", "no_proxy",
     "GOCOVERDIR", "GODEBUG", "GOFIPS140", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOROOT", "GOTRACEBACK"}
)  # fmt: skip
CLIENTS_OWN_PREFIXES = (
    *("DOCKER_", "CONTAINER_", "CONTAINERS_", "PODMAN_", "BUILDAH_", "STORAGE_", "XDG_", "DBUS_", "LD_", "SSL_"),
    *("APPTAINER", "SINGULARITY", "REGISTRY_", "NOTIFY_", "http", "https", "HTTP", "HTTPS", "NO_PROXY", "LC_"),
)

# What the clients of Apptainer and Singularity put inside without being told to, `--cleanenv` or not. Source:
# apptainer, internal/pkg/util/env/clean.go.
PROXIES = frozenset(
    name for scheme in ("http", "https", "ftp", "all", "no") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
)
# Each option of theirs has a variable (`APPTAINER_BIND`); these say where their own files are, or how much they print.
STEERING = ("TMPDIR", "CACHEDIR", "LOCALCACHEDIR", "CONFIGDIR", "DISABLE_CACHE", "MESSAGELEVEL", "NOCOLOR", "SILENT")


class DeviceGrant(str, Enum):
    """The ways in which cards are put into a container; exactly the leased ones (CTR-03, B-15)."""

    NONE = "none"
    SIMULATED = "simulated"
    GPUS = "gpus"
    CDI = "cdi"
    NODES = "nodes"
    VARIABLE = "variable"


@record
class CardsInside:
    """Which cards go in: how, the UUIDs of the lease, and the device files of `DeviceGrant.NODES`."""

    how: DeviceGrant = DeviceGrant.NONE
    uuids: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@record
class ContainerPlan:
    """All that creating one container takes. `environment` is the whole declared environment of the job inside.

    `adds_proxies`: its client would put proxies of its own in, over those of an env file. `ulimits` are pairs of name
    and ``soft:hard``; `user` is ``uid:gid`` or empty for the image's own; `limits` None where the runtime holds none
    here.
    """

    runtime: RuntimeName
    name: str
    run_id: str
    attempt: int
    run_dir: str
    reference: str
    command: tuple[str, ...]
    workdir: str
    environment: dict[str, str]
    binds: tuple[Bind, ...]
    cards: CardsInside = CardsInside()
    shm_bytes: int | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    rootless: bool = False
    init: bool = True
    network: str = HOST_NETWORK
    limits: Limits | None = None
    ulimits: tuple[tuple[str, str], ...] = ()
    pty: bool = False
    pid_file: str = ""
    entrypoint: EntryPoint = EntryPoint.CLEAR
    adds_proxies: bool = False


def is_clients_own(name: str) -> bool:
    """Whether a variable would change what the runtime's client does."""
    return name in CLIENTS_OWN or name.startswith(CLIENTS_OWN_PREFIXES)


def goes_into_apptainer(name: str) -> bool:
    """Whether a variable of its caller would change what is inside, beside what the job's plan says."""
    prefix, _, rest = name.partition("_")
    if prefix in ("APPTAINER", "SINGULARITY"):
        return rest not in STEERING
    return prefix in ("APPTAINERENV", "SINGULARITYENV") or name in PROXIES


def split_environment(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What goes by name, through the client's own environment, and what by a file because the client would obey it."""
    by_file = {name: value for name, value in values.items() if is_clients_own(name)}
    return {name: value for name, value in values.items() if name not in by_file}, by_file


def split_plan(plan: ContainerPlan) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """As `split_environment`, and which names the client is to have without a value, which keeps them outside.

    A client with proxies of its own takes those for what is not said by name, so proxies are, and it obeys them.
    """
    by_name, by_file = split_environment(plan.environment)
    if not plan.adds_proxies:
        return by_name, by_file, ()
    by_name |= {name: by_file.pop(name) for name in sorted(PROXIES & by_file.keys())}
    return by_name, by_file, tuple(sorted(PROXIES - by_name.keys()))


def find_unwritable(values: Mapping[str, str]) -> list[str]:
    """The names of which the value cannot stand in the runtimes' env files: those are lines, and unquoted by some."""
    _, by_file = split_environment(values)
    return sorted(name for name, value in by_file.items() if set(value) & set("\n\r\0") or value[:1] in ("'", '"'))


def find_unbindable(runtime: RuntimeName, paths: Iterable[str]) -> list[str]:
    """The paths that a runtime's notation for binds has no way to say."""
    if runtime not in FOR_FILES:
        return []
    return sorted({path for path in paths if set(path) & set(",:")})


def build_env_file(values: Mapping[str, str]) -> str:
    """What the client reads on its standard input (`split_environment`), of values that can be written there."""
    _, by_file = split_environment(values)
    return "".join(f"{name}={value}\n" for name, value in sorted(by_file.items()))


def build_create_command(plan: ContainerPlan) -> tuple[str, ...]:
    """The words behind ``podman`` or ``docker`` that create the container; nothing of it is started by that."""
    podman = plan.runtime is RuntimeName.PODMAN
    words = ["create", f"--name={plan.name}", "--pull=never", "--restart=no", f"--workdir={plan.workdir}"]
    words += [f"--label={LABEL_RUN}={plan.run_id}", f"--label={LABEL_ATTEMPT}={plan.attempt}"]
    words += [f"--label={LABEL_DIRECTORY}={plan.run_dir}", f"--network={plan.network}"]
    words += _build_process_words(plan, podman=podman)
    words += _build_environment_words(plan)
    words += _build_card_words(plan.cards)
    words += _build_limit_words(plan)
    words += [f"--mount={_build_mount(bind)}" for bind in plan.binds]
    if podman:
        words.append(f"--entrypoint={json.dumps([SHELL, ENTER])}")
        return (*words, plan.reference, *plan.command)
    return (*words, f"--entrypoint={SHELL}", plan.reference, ENTER, *plan.command)


def _build_process_words(plan: ContainerPlan, *, podman: bool) -> list[str]:
    words = [f"--user={plan.user}"] if plan.user else []
    if podman and plan.rootless and plan.user:
        words.append("--userns=keep-id")
    elif plan.user:
        words += [f"--group-add={group}" for group in plan.groups]
    if plan.init:
        words.append("--init")
    if plan.shm_bytes is not None:
        words.append(f"--shm-size={plan.shm_bytes}")
    if plan.pty:
        words.append("--tty")
    if podman:
        words += ["--http-proxy=false", "--security-opt=label=disable"]
        words += [f"--pidfile={plan.pid_file}"] if plan.pid_file else []
    return [*words, *(f"--ulimit={name}={value}" for name, value in plan.ulimits), "--log-driver=none"]


def _build_mount(bind: Bind) -> str:
    """One line of CSV, as both read it: a path may have commas and quotes."""
    fields = ["type=bind", f"source={bind.source}", f"target={bind.target}", *([] if bind.writable else ["readonly"])]
    return ",".join('"{}"'.format(one.replace('"', '""')) if set(one) & set(',"\n') else one for one in fields)


def _build_environment_words(plan: ContainerPlan) -> list[str]:
    by_name, by_file, kept_out = split_plan(plan)
    names = sorted((*by_name, *kept_out))
    # A name without a value takes a variable away where its client has none of that name.
    return [*([f"--env-file={ENV_FILE}"] if by_file else []), *(f"--env={name}" for name in names)]


def _build_card_words(cards: CardsInside) -> list[str]:
    if cards.how is DeviceGrant.GPUS:
        # The quotes are for docker's CSV reader: without them the second card would be an option of its own.
        return [f'--gpus="device={",".join(cards.uuids)}"']
    if cards.how is DeviceGrant.CDI:
        return [f"--device=nvidia.com/gpu={uuid}" for uuid in cards.uuids]
    if cards.how is DeviceGrant.NODES:
        return [f"--device={node}" for node in cards.nodes]
    return []


def _build_limit_words(plan: ContainerPlan) -> list[str]:
    limits = plan.limits
    if limits is None:
        return []
    words = []
    if limits.memory_bytes is not None:
        swap = limits.memory_bytes + (limits.swap_bytes or 0)
        words += [f"--memory={limits.memory_bytes}", f"--memory-swap={swap}"]
    if limits.cpus is not None:
        words.append(f"--cpus={limits.cpus:g}")
    if limits.cpu_weight is not None:
        words.append(f"--cpu-shares={max(2, limits.cpu_weight * CPU_PERIOD_SHARES // 100)}")
    if limits.affinity:
        words.append(f"--cpuset-cpus={','.join(map(str, limits.affinity))}")
    # Without a word docker has no limit of tasks, and podman one of 2048, which data loaders meet.
    words.append(f"--pids-limit={limits.tasks if limits.tasks is not None else -1}")
    return words


def build_start_command(container: str) -> tuple[str, ...]:
    """The words that start a created container and stay until it ends, with its output and its exit code."""
    return ("start", "--attach", container)


def build_enter_command(
    container: str, workdir: str, command: tuple[str, ...], *, unset: tuple[str, ...] = (), terminal: bool = False
) -> tuple[str, ...]:
    """The words behind ``podman`` or ``docker`` that run a command inside a container that runs, without `unset`.

    Source: podman-exec(1), docker-exec(1).
    """
    words = ["exec", "--interactive", *(["--tty", "--env=TERM"] if terminal else []), f"--workdir={workdir}", container]
    if unset:
        # No runtime takes a variable away; the names are ours, and the command goes behind them as it is.
        command = (SHELL, "-c", f'unset {" ".join(unset)}; exec "$@"', "sh", *command)
    return (*words, *command)


def build_exec_command(plan: ContainerPlan) -> tuple[str, ...]:
    """The words behind ``apptainer`` or ``singularity`` that run the job in an image, as our own descendant (CTR-02).

    ``--nv`` puts all cards of the box in; that the job takes the leased ones rests on the variable alone. Its notation
    for binds has no place for commas and colons in a path.
    """
    words = ["exec", "--containall", "--cleanenv", "--no-home", "--pid", f"--pwd={plan.workdir}"]
    words += ["--no-init"] if not plan.init else []
    words += ["--net", "--network=none"] if plan.network == NO_NETWORK else []
    words += ["--nv"] if plan.cards.how is DeviceGrant.VARIABLE else []
    for bind in plan.binds:
        words.append(f"--bind={bind.source}:{bind.target}:{'rw' if bind.writable else 'ro'}")
    return (*words, plan.reference, SHELL, ENTER, *plan.command)


def name_container(run_id: str, attempt: int, run_dir: str) -> str:
    """The name of an attempt's container: known before it exists, so that one left by a killed start is found.

    Runs of two roots, or of two accounts that share a daemon, may have one id: the end stands for the directory.
    """
    return f"holdfast-{run_id}.{attempt}-{zlib.crc32(run_dir.encode(errors='surrogateescape')):08x}"
