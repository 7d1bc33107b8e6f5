"""One run over several nodes of a job of Slurm: how the others are launched, what each command is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.nodes import NodeFacts
from holdfast.model.units import format_count

LINK = "HOLDFAST_NODES_LINK"
"""Where a member finds its leader, and what it says to be let in; no command sees it."""
COLLECTIVE = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "UCX_", "FI_")
ALIKE = frozenset({"OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"})
"""Variables, beside those of `COLLECTIVE`, that are to be the same on all nodes."""
LONGEST_VALUE = 1000
_OF_A_STEP = ("SLURM_STEP", "SLURM_SRUN_", "SLURM_CPU_BIND", "SLURM_LAUNCH_", "SLURM_UMASK", "SLURM_DISTRIBUTION")
_FORCED = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE")


def build_launch(environ: Mapping[str, str], nodes: int, member: Sequence[str]) -> tuple[str, ...]:
    """The command that starts `member` once on each other node of this job; with all that the job has there.

    A step does not take over ``--cpus-per-task`` by itself. Source: srun(1) of 22.05.
    """
    others = str(nodes - 1)
    words = ["srun", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", "--export=ALL"]
    words += [f"--exclude={environ['SLURMD_NODENAME']}", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"]
    words += ["--input=none", "--job-name=holdfast"]
    if environ.get("SLURM_CPUS_PER_TASK"):
        words.append(f"--cpus-per-task={environ['SLURM_CPUS_PER_TASK']}")
    return (*words, *member)


def tell_ranks(environ: Mapping[str, str], nodes: int, node: int) -> dict[str, str]:
    """What the command of a node is told of its place; `environ` is the leader's, which has address and port.

    A person's own value wins. torchrun takes ``PET_<OPTION>`` for an option that is not given. Source:
    torch/distributed/argparse_util.py, `env`.
    """
    address, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    told = {"PET_NNODES": str(nodes), "PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
    cards = count_cards(environ)
    if cards:
        told["PET_NPROC_PER_NODE"] = str(cards)
    kept = {name: value for name, value in told.items() if name not in environ}
    return {**kept, "HOLDFAST_NODES": str(nodes), "HOLDFAST_NODE_RANK": str(node), "PET_NODE_RANK": str(node)}


def build_member_environ(environ: Mapping[str, str], leader: Mapping[str, str], node: int) -> dict[str, str]:
    """The environment of a member's command: the leader's, with this node's cards, and its place in the whole job.

    Of the step that started it nothing is left: a launcher that reads Slurm's variables is to see one job of all nodes.
    """
    found = {name: value for name, value in environ.items() if not name.startswith(_OF_A_STEP) and name != LINK}
    found.update({name: leader[name] for name in _FORCED if name in leader})
    found.update({name: str(node) for name in ("SLURM_NODEID", "SLURM_PROCID", "HOLDFAST_NODE_RANK", "PET_NODE_RANK")})
    return found


def list_forced(environ: Mapping[str, str]) -> dict[str, str]:
    """Of the leader's environment what a step would say otherwise."""
    return {name: environ[name] for name in _FORCED if name in environ}


def count_cards(environ: Mapping[str, str]) -> int | None:
    """How many cards a node's command has; None where nothing is said of cards."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    return len([part for part in text.split(",") if part.strip() and part.strip() not in ("-1", "NoDevFiles")])


def select_collective(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are to be the same on all nodes, for the record."""
    names = sorted(name for name in environ if name.startswith(COLLECTIVE) or name in ALIKE)
    return {name: environ[name][:LONGEST_VALUE] for name in names}


def compare(leader: NodeFacts, member: NodeFacts) -> tuple[list[str], list[str]]:
    """What keeps the job from running over both, and what a person should know; each as words about the member."""
    wrong, odd = [], []
    if not member.run:
        wrong.append("it does not see the run's directory: `root` of the place must be on a file system of all nodes")
    elif member.run != leader.run:
        wrong.append("it reads another run.json than the first node")
    if member.workdir != leader.workdir:
        wrong.append(f"it does not have the working directory {leader.workdir}")
    if leader.program and not member.program:
        wrong.append(f"the command is not there: {leader.program}")
    if member.cards != leader.cards:
        wrong.append(f"it has {_count(member.cards)}, the first node {_count(leader.cards)}")
    if member.cpus != leader.cpus:
        odd.append(f"it has {format_count(member.cpus, 'core')}, the first node {leader.cpus}")
    if member.driver != leader.driver:
        odd.append(f"its NVIDIA driver is {member.driver or 'absent'}, on the first node {leader.driver or 'absent'}")
    for name in sorted({*member.environment, *leader.environment}):
        here, there = member.environment.get(name), leader.environment.get(name)
        if here != there:
            odd.append(f"{name} is {_quote(here)}, on the first node {_quote(there)}")
    return wrong, odd


def _count(cards: int | None) -> str:
    return "no cards named by Slurm" if cards is None else format_count(cards, "card")


def _quote(value: str | None) -> str:
    return "not set" if value is None else repr(value)
