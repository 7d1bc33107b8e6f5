"""Faults that end a run."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.verdict import FailureClass as Class

from .spec import Fault, FaultAct, FaultProof, Need, ProofKind, Stage

LITTLE_MEMORY: Mapping[str, object] = {"limits": {"memory": "128MiB"}}
FUSE_NEEDS = (Need.MOUNT_NAMESPACE, Need.FUSE)
TORCHRUN = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BY_A_SHELL = ("sh", "-c", 'exec "$0" "$@"', "{python}")
"""By a shell, so that a framework in this interpreter that was built without CUDA is no reason to refuse the card."""
FAILED = FaultProof(ProofKind.CODE, "1")
XID_79 = "NVRM: Xid (PCI:0000:af:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ON_A_CARD: Mapping[str, object] = {"gpus": 1, "gpu": {"idle_window": "0s", "min_free": "1GiB"}}


def _errno(name: str) -> FaultProof:
    return FaultProof(ProofKind.ERRNO, name)


def _fuse(name: str, summary: str, option: str, kind: Class, *gotchas: str) -> Fault:
    payload, _, error = option.partition(":")
    return Fault(
        name, summary, (kind,), (_errno(error), FAILED), ("storage", payload), gotchas=gotchas, needs=FUSE_NEEDS,
        stage=Stage.FUSE, stage_option=option,
    )  # fmt: skip


def _ending(
    name: str,
    summary: str,
    kind: Class,
    *proofs: FaultProof,
    gotchas: tuple[str, ...] = (),
    job: Mapping[str, object] | None = None,
) -> Fault:
    return Fault(name, summary, (kind,), proofs, ("ending", name), gotchas=gotchas, job=job or {})


ENDS: tuple[Fault, ...] = (
    # ------------------------------------------------------------------------------------------------ memory
    Fault(
        "host-memory", "the main process needs more RAM than its group has, with workers beside it",
        (Class.OUT_OF_MEMORY,), (FaultProof(ProofKind.OOM_KILL, "moved"), FaultProof(ProofKind.SIGNAL, "9")),
        ("memory", "main"),
        gotchas=("U3", "U9", "U41"), needs=(Need.MEMORY_CGROUP,), job=LITTLE_MEMORY,
    ),
    Fault(
        "host-memory-worker", "the kernel kills a worker for lack of RAM; the main process ends with an error",
        (Class.OUT_OF_MEMORY,),
        (FaultProof(ProofKind.OOM_KILL, "moved"), FaultProof(ProofKind.MARK, "worker-killed"), FAILED),
        ("memory", "worker"), gotchas=("U9",), needs=(Need.MEMORY_CGROUP,), job=LITTLE_MEMORY,
    ),
    Fault(
        "shm-full", "a batch in /dev/shm that has no room there: SIGBUS", (Class.SHARED_MEMORY,),
        (FaultProof(ProofKind.MARK, "mapped"), FaultProof(ProofKind.SIGNAL, "7")), ("storage", "shared-memory"),
        needs=(Need.MOUNT_NAMESPACE,), stage=Stage.SMALL_SHM,
    ),
    _ending(
        "vram-oom", "the words of a full card (words only: no card is needed)", Class.GPU_OUT_OF_MEMORY,
        FaultProof(ProofKind.WORDS, "CUDA out of memory"), gotchas=("U10",),
    ),
    # ----------------------------------------------------------------------------------------------- storage
    Fault(
        "disk-full", "a checkpoint that does not fit on its disk", (Class.DISK_FULL,), (_errno("ENOSPC"), FAILED),
        ("storage", "write"), gotchas=("U6",), needs=(Need.MOUNT_NAMESPACE,), stage=Stage.SMALL_DISK,
    ),
    Fault(
        "inodes-full", "free bytes, and no inode for one more file", (Class.DISK_FULL,), (_errno("ENOSPC"), FAILED),
        ("storage", "many-files"), gotchas=("U7", "U25"), needs=(Need.MOUNT_NAMESPACE,), stage=Stage.FEW_INODES,
    ),
    Fault(
        "loop-full", "the same as disk-full, on an ext4 of its own", (Class.DISK_FULL,), (_errno("ENOSPC"), FAILED),
        ("storage", "write"), gotchas=("U6",), needs=(Need.MOUNT_NAMESPACE, Need.LOOP_EXT4), stage=Stage.LOOP_DISK,
    ),
    _fuse("fuse-stale", "the data's file handle is stale", "read:ESTALE", Class.STORAGE_FAULT, "U8"),
    _fuse("fuse-eio", "a read ends in an input/output error", "read:EIO", Class.STORAGE_FAULT),
    _fuse(
        "fuse-enospc", "a network disk is full while statfs shows room", "write:ENOSPC", Class.DISK_FULL, "U6",
    ),
    _fuse("fuse-edquot", "the quota is used up", "write:EDQUOT", Class.DISK_FULL, "U6", "U33"),
    # ------------------------------------------------------------------------------------------ ended by others
    _ending(
        "hang-up", "the terminal goes, and SIGHUP with it", Class.HANG_UP, FaultProof(ProofKind.MARK, "terminal"),
        FaultProof(ProofKind.SIGNAL, "1"), gotchas=("U3", "GEN2"),
    ),
    Fault(
        "killed", "somebody sends SIGKILL", (Class.KILLED,), (FaultProof(ProofKind.SIGNAL, "9"),),
        ("ending", "wait-for-death"),
        gotchas=("U3",), act=FaultAct.KILL_JOB,
    ),
    Fault(
        "terminated", "somebody sends SIGTERM", (Class.KILLED,), (FaultProof(ProofKind.SIGNAL, "15"),),
        ("ending", "wait-for-death"), gotchas=("U3",), act=FaultAct.TERM_JOB,
    ),
    Fault(
        "killed-beside-oom", "a neighbour dies for lack of memory, then somebody kills the run", (Class.KILLED,),
        (FaultProof(ProofKind.MARK, "neighbour-killed"), FaultProof(ProofKind.SIGNAL, "9")),
        ("ending", "wait-for-death"),
        gotchas=("U3", "U41"), needs=(Need.MEMORY_CGROUP,), act=FaultAct.NEIGHBOUR_OOM, job=LITTLE_MEMORY,
    ),
    Fault(
        "timed-out", "the run's time is over", (Class.TIMED_OUT,), (FaultProof(ProofKind.OUTCOME, "timed_out"),),
        ("ending", "wait-for-death"), job={"timeouts": {"run": "2s"}},
    ),
    Fault(
        "stopped-by-owner", "its owner ends it with `holdfast stop`", (Class.STOPPED,),
        (FaultProof(ProofKind.OUTCOME, "stopped"),), ("ending", "wait-for-death"), act=FaultAct.ASK_STOP,
    ),
    Fault(
        "stalled", "two threads lock each other out, and the job asks to be ended then", (Class.STALLED,),
        (FaultProof(ProofKind.MARK, "locked"), FaultProof(ProofKind.OUTCOME, "timed_out")), ("hanging", "stalled"),
        slow=True,
        job={"stall": {"no_progress": "3s", "action": "stop"}, "health_every": "1s"},
    ),
    Fault(
        "supervisor-lost", "the supervisor and the keeper are killed, and the job with them",
        (Class.SUPERVISOR_LOST,), (FaultProof(ProofKind.MARK, "ready"),), ("ending", "wait-for-death"), gotchas=("U3",),
        act=FaultAct.KILL_KEEPERS,
    ),
    Fault(
        "reboot", "the box restarts under a run", (Class.REBOOT,), (), ("ending", "wait-for-death"),
        gotchas=("U3", "GEN6"), needs=(Need.USER_MODE_LINUX,), slow=True,
    ),
    # ------------------------------------------------------------------------------------------------ own doing
    _ending("key-error", "a bug: KeyError", Class.BUG, FAILED),
    _ending("import-error", "a package that is not installed", Class.ENVIRONMENT, FAILED, gotchas=("U29",)),
    _ending(
        "misleading-words", "a bug, after words that look like other failures", Class.BUG, FAILED,
        FaultProof(ProofKind.WORDS, "mean squared Error 0.1"),
    ),
    _ending(
        "result-missing", "exit code 0, and the declared result is not there", Class.RESULT_MISSING,
        FaultProof(ProofKind.CODE, "0"), job={"artifacts": ["artifacts/result.json"]},
    ),
    _ending("abort", "native code gives up", Class.NATIVE_CRASH, FaultProof(ProofKind.SIGNAL, "6")),
    _ending("segfault", "native code reads at address zero", Class.NATIVE_CRASH, FaultProof(ProofKind.SIGNAL, "11")),
    _ending(
        "file-limit", "more open files than the limit allows", Class.RESOURCE_LIMIT, _errno("EMFILE"), FAILED,
        job={"limits": {"open_files": 64}},
    ),
    _ending("nan", "the loss is not a number any more", Class.DIVERGED, FaultProof(ProofKind.MARK, "nan"), FAILED),
    _ending(
        "fast-finish", "exit code 0 in a second where an hour was expected", Class.SUSPICIOUS_FINISH,
        FaultProof(ProofKind.CODE, "0"), job={"expected": "1h"},
    ),
    _ending(
        "no-kernel-image", "the words of a framework that was not built for the card", Class.ENVIRONMENT,
        FaultProof(ProofKind.WORDS, "no kernel image is available"), gotchas=("U28",),
    ),
    _ending(
        "tracker-blip", "the tracker does not answer at the start", Class.TRANSIENT,
        FaultProof(ProofKind.WORDS, "CommError"),
        FAILED, gotchas=("U35",),
    ),
    Fault(
        "crlf", "a script with the line ends of Windows", (Class.REFUSED,),
        (FaultProof(ProofKind.ENDING, "script.line_ends"),),
        command=("{box}/windows.py",), gotchas=("U26", "GEN4"),
    ),
    Fault(
        "edited-script", "the shell script is edited while it runs", (), (FaultProof(ProofKind.OUTCOME, "succeeded"),),
        command=("sh", "{box}/script.sh"), gotchas=("U2",), act=FaultAct.EDIT_SCRIPT,
        prevented="the run has its own copy of the script, and ended well",
    ),
    # -------------------------------------------------------------------------------------------- several ranks
    Fault(
        "torchrun-raise", "one of two ranks raises, the other loses its peer", (Class.BUG,),
        (FaultProof(ProofKind.MARK, "odd"), FAILED), ("ranks", "raise"), TORCHRUN, needs=(Need.TORCH,), slow=True,
    ),
    Fault(
        "torchrun-killed", "one of two ranks is killed", (Class.KILLED,), (FaultProof(ProofKind.MARK, "odd"), FAILED),
        ("ranks", "killed"), TORCHRUN, needs=(Need.TORCH,), slow=True,
    ),
    Fault(
        "torchrun-late", "one of two ranks comes too late, and the other gives up", (Class.COMMUNICATION,),
        (FaultProof(ProofKind.MARK, "odd"), FAILED), ("ranks", "late"), TORCHRUN, needs=(Need.TORCH,), slow=True,
    ),
    # ---------------------------------------------------------------------------------------------------- cards
    Fault(
        "gpu-ecc", "the card counts an uncorrectable memory error and the framework says so", (Class.HARDWARE,),
        (FAILED,), ("ending", "ecc"), BY_A_SHELL, gotchas=("U22",), needs=(Need.NVML_LIBRARY,), stage=Stage.CARD,
        act=FaultAct.CARD, job=ON_A_CARD,
        card_after={"0.ecc.volatile.uncorrected": "3", "0.ecc.aggregate.uncorrected": "3", "0.remapped": "0 1 1 0"},
    ),
    Fault(
        "gpu-lost", "the card falls off the bus under the run", (Class.HARDWARE,), (FAILED,), ("ending", "lost"),
        BY_A_SHELL, gotchas=("U22",), needs=(Need.NVML_LIBRARY,), stage=Stage.CARD, act=FaultAct.CARD, job=ON_A_CARD,
        card_after={"rc.*.0": "15"},
    ),
    # ------------------------------------------------------------------------------------------------ kernel log
    Fault(
        "injected-xid", "the kernel's log says that a card fell off the bus (Xid 79), with a bus number in letters",
        (Class.HARDWARE,), (FaultProof(ProofKind.KERNEL_EVENT, "xid"),), gotchas=("U22",), stage=Stage.KERNEL_LOG,
        records=(f"4,901,77000000,-;{XID_79}",),
    ),
    Fault(
        "forged-kernel-line", "a process writes the same line into the kernel's log", (),
        (FaultProof(ProofKind.KERNEL_EVENT, "xid"),), gotchas=("U22",), stage=Stage.KERNEL_LOG,
        records=(f"12,901,77000000,-;{XID_79}",),
        prevented="the facility says that no kernel wrote it, and it was not believed",
    ),
    Fault(
        "xid-45-alone", "the log only shows that a killed program was cleaned up after (Xid 45)", (),
        (FaultProof(ProofKind.KERNEL_EVENT, "xid"),), gotchas=("U22",), stage=Stage.KERNEL_LOG,
        records=("4,901,77000000,-;NVRM: Xid (PCI:0000:af:00): 45, pid=4242, name=python, Ch 00000008",),
        prevented="it is never a verdict by itself",
    ),
    Fault(
        "gpu-ghost", "memory of the card is held by nobody who can be seen", (Class.REFUSED,),
        (FaultProof(ProofKind.ENDING, "memory_held"),), ("ending", "finish"), BY_A_SHELL, gotchas=("U11",),
        needs=(Need.NVML_LIBRARY,), stage=Stage.CARD,
        job=ON_A_CARD, card_before={"0.memory.used": str(78 << 30)},
    ),
)  # fmt: skip
