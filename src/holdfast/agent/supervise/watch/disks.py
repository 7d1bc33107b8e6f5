"""Watches the disks that a run writes to with each sample: bytes, inodes, and how long they last (STOR-01, STOR-09).

Which file systems these are is found out in a disposable child, which also keeps what that needs out of the
supervisor's memory. Local ones are then asked directly; one that may not answer (a network mount, FUSE) is asked in a
child with a deadline, and its answer stands in the next sample. What did not answer is "unread", never "fine".
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.run.trend import MOST_SAMPLES, Alarm, find_time_left, find_trend, is_far, is_soon
from holdfast.host.clock import monotonic_s
from holdfast.host.files.disks import DiskUnreadable, measure_space
from holdfast.host.files.filesystems import read_mounts
from holdfast.host.process import pidfd
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.record import field, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.job import DiskNeeds

ANSWER_S = 5.0
FIND_S = 60.0
"""For finding out which disks there are: each place on a dead mount takes 2 s, one after the other."""
CACHES = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "WANDB_DIR", "TMPDIR")
"""Where a job writes besides, when its environment says so."""
INODES_USED = 0.96
MEMORY_USED = 0.9
"""Of a file system in memory (/dev/shm): when it is full, whoever has mapped it gets SIGBUS."""
ROOM = 1.2
"""An alarm about room ends with so many times what was missed."""
MOST_DISKS = 12


@record(frozen=False)
class _Disk:
    """One file system, a path on it, and what was seen of it."""

    path: str
    mount_point: str
    kind: str
    slow: bool
    in_memory: bool
    facts: dict[str, object] = field(default_factory=dict)
    free_bytes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    free_inodes: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    had_room: bool = False
    filling: Alarm = field(default_factory=Alarm)
    inodes_filling: Alarm = field(default_factory=Alarm)


class DiskWatch:
    """Reads the disks of one run with each health sample."""

    def __init__(self, context: SupervisorContext, alert: Callable[..., None]) -> None:
        """Nothing is read before the first `read`. `alert` is told an event's name and its facts."""
        self._context, self._alert = context, alert
        self._disks: list[_Disk] | None = None
        self._work: Offload | None = None
        self._stuck: pidfd.HeldProcess | None = None
        """A child that was given up and did not die of it."""

    def read(self) -> list[dict[str, object]]:
        """What each file system has left; none yet as long as it is being found out which they are."""
        if self._disks is None:
            if self._work is None:
                places = list_places(self._context)
                self._ask(lambda: find_disks(places), self._take_disks, FIND_S)
            return []
        slow = []
        for disk in self._disks:
            if disk.slow:
                slow.append(disk)
                continue
            try:
                self._note(disk, _measure(disk.path))
            except OSError as error:
                disk.facts = {"unread": error.strerror or str(error)}
        if slow and self._work is None:
            paths = [disk.path for disk in slow]
            self._ask(
                lambda: [_measure_or_say(path) for path in paths], lambda found: self._take_slow(slow, found), ANSWER_S
            )
        return [{"mount_point": disk.mount_point, "kind": disk.kind, **disk.facts} for disk in self._disks]

    def close(self) -> None:
        """Ask no more."""
        self._drop()
        if self._stuck is not None:
            self._forget_stuck(self._stuck)

    def _ask(self, question: Callable[[], object], take: Callable[[object], None], within_s: float) -> None:
        """Have a child find something out; what does not come within `within_s` is given up (`take` gets None).

        While a child that was given up is held in the kernel nobody else is sent there: a mount that is dead for a day
        would hold thousands.
        """
        loop = self._context.loop
        if self._is_stuck():
            return
        try:
            work = self._work = Offload(question)
        except OSError:
            return
        self._context.helpers.add(work.pid)

        def answer() -> None:
            if not work.is_done():
                return
            self._forget()
            try:
                take(work.result())
            except OffloadFailed:
                take(None)

        def give_up() -> None:
            self._drop()
            take(None)

        loop.add(work.fileno(), answer)
        loop.timers.arm(self, within_s, give_up)

    def _forget(self) -> Offload | None:
        work, self._work = self._work, None
        if work is not None:
            self._context.loop.timers.disarm(self)
            self._context.loop.remove(work.fileno())
            self._context.helpers.discard(work.pid)
        return work

    def _drop(self) -> None:
        work = self._forget()
        if work is None:
            return
        try:
            self._stuck = pidfd.hold(work.pid)
        except OSError:
            self._stuck = None
        work.abandon()
        if self._is_stuck():
            # Still a child of ours, and none of the job's.
            self._context.helpers.add(work.pid)

    def _is_stuck(self) -> bool:
        """Whether the child that was given up lives on."""
        if self._stuck is None:
            return False
        if not self._stuck.has_ended():
            return True
        self._forget_stuck(self._stuck)
        return False

    def _forget_stuck(self, child: pidfd.HeldProcess) -> None:
        self._context.helpers.discard(child.pid)
        child.close()
        self._stuck = None

    def _take_disks(self, found: object) -> None:
        if isinstance(found, list):
            self._disks = [_Disk(**facts) for facts in found]

    def _take_slow(self, disks: list[_Disk], found: object) -> None:
        answers = found if isinstance(found, list) else [f"no answer within {ANSWER_S:g} s"] * len(disks)
        for disk, answer in zip(disks, answers, strict=True):
            if isinstance(answer, dict):
                self._note(disk, answer)
            else:
                disk.facts = {"unread": str(answer)}

    def _note(self, disk: _Disk, facts: dict[str, int | None]) -> None:
        now, needs = monotonic_s(), self._context.spec.disk
        free, inodes = facts["free_bytes"], facts["free_inodes"]
        assert free is not None
        disk.facts = {**facts}
        disk.free_bytes.append((now, float(free)))
        self._judge_bytes(disk, free, facts["total_bytes"] or 0, needs)
        if inodes is not None:
            disk.free_inodes.append((now, float(inodes)))
            self._judge_inodes(disk, inodes, facts["total_inodes"] or 0, needs)

    def _judge_bytes(self, disk: _Disk, free: int, total: int, needs: DiskNeeds) -> None:
        soon, far, facts = _foresee(disk.free_bytes)
        low = disk.had_room and free < needs.min_free_bytes
        if disk.in_memory:
            low = total > 0 and free < (1 - MEMORY_USED) * total
        well = far and (not low if disk.in_memory else free > ROOM * needs.min_free_bytes or not disk.had_room)
        disk.had_room = disk.had_room or free > ROOM * needs.min_free_bytes
        disk.facts.update(facts)
        if disk.filling.note(bad=soon or low, well=well):
            needed = {"checkpoint_bytes": needs.checkpoint_bytes, "min_free_bytes": needs.min_free_bytes}
            self._alert("disk_filling", mount_point=disk.mount_point, path=disk.path, **disk.facts, **needed)

    def _judge_inodes(self, disk: _Disk, free: int, total: int, needs: DiskNeeds) -> None:
        soon, far, facts = _foresee(disk.free_inodes)
        full = total > 0 and free <= (1 - INODES_USED) * total
        well = far and not full
        if "full_in_s" in facts:
            disk.facts["inodes_full_in_s"] = facts["full_in_s"]
        if disk.inodes_filling.note(bad=soon or full, well=well):
            needed = {"min_free_inodes": needs.min_free_inodes}
            self._alert("inodes_filling", mount_point=disk.mount_point, path=disk.path, **disk.facts, **needed)


def _foresee(samples: deque[tuple[float, float]]) -> tuple[bool, bool, dict[str, object]]:
    """Whether the end is soon, whether it is far, and the numbers; a disk that does not shrink costs no arithmetic."""
    if len(samples) < 2 or samples[-1][1] >= samples[0][1]:
        return False, True, {}
    trend = find_trend(samples)
    if trend is None:
        return False, False, {}
    left = find_time_left(samples[-1][1], trend)
    if left.likely_s is None:
        return False, True, {}
    spread = [None if value is None else round(value) for value in (left.earliest_s, left.latest_s)]
    return is_soon(left), is_far(left), {"full_in_s": round(left.likely_s), "full_between_s": spread}


def list_places(context: SupervisorContext) -> list[str]:
    """The paths that the job may write to, as far as it has said."""
    spec = context.spec
    environ = {**context.environ, **spec.env}
    mirror = [path for path in (spec.checkpoints.mirror, spec.results.to) if path is not None]
    caches = [] if spec.caches is None else [spec.caches]
    caches += [environ[name] for name in CACHES if environ.get(name, "").startswith("/")]
    return [context.run_dir, *mirror, spec.workdir, *spec.disk.paths, *caches, "/dev/shm", "/tmp"]  # noqa: S108 - read


def find_disks(places: list[str]) -> list[dict[str, object]]:
    """In the child: the file systems under these paths, each once, with what kind they are."""
    mounts, found = read_mounts(), dict[int, dict[str, object]]()
    for place in places:
        try:
            space = measure_space(place, mounts)
        except DiskUnreadable:
            # It did not answer now, so it is asked again, and said to be unread as long as it does not.
            silent = {"path": place, "mount_point": place, "kind": "unknown", "slow": True, "in_memory": False}
            found.setdefault(-len(found) - 1, silent)
            continue
        if space.device in found or space.read_only or len(found) >= MOST_DISKS:
            continue
        slow = space.is_network or space.kind.startswith("fuse")
        found[space.device] = {
            "path": space.real_path,
            "mount_point": space.mount_point,
            "kind": space.kind,
            "slow": slow,
            "in_memory": space.is_memory,
        }
    return list(found.values())


def _measure(path: str) -> dict[str, int | None]:
    """What an unprivileged account may still use. Source: statvfs(3); a file system without inodes has 0 of them."""
    facts = os.statvfs(path)
    return {
        "free_bytes": facts.f_bavail * facts.f_frsize,
        "total_bytes": facts.f_blocks * facts.f_frsize,
        "free_inodes": facts.f_favail if facts.f_files else None,
        "total_inodes": facts.f_files or None,
    }


def _measure_or_say(path: str) -> object:
    try:
        return _measure(path)
    except OSError as error:
        return error.strerror or str(error)
