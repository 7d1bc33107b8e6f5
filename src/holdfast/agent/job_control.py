"""The job's processes under one supervisor: start, watch, end, and prove that nothing is left.

The keeper's exit is the normal proof that the tree is empty. Where the keeper itself was killed, the supervisor (a
child subreaper) inherits its children and finds the rest by cgroup, namespace, descent and marker.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from ..core.events import (
    JobExited,
    JobReported,
    JobStarted,
    JobVanished,
    Resumed,
    StartFailed,
    TreeEmptied,
    TreeStuck,
)
from ..host import members, witness
from ..host.clock import boottime_ns, epoch_s, monotonic_s, utc_now
from ..host.keeper import describe_status, wait_briefly, write_status
from ..host.processes import is_alive, open_pidfd, read_environ
from ..model import wire
from ..model.identity import WaitStatus
from ..model.job import Rung
from ..model.run import Ended, Finalizing, Refusal, Running, Starting, State, Stopping
from .gear import Gear, reopen_gear

if TYPE_CHECKING:
    from ..host.cgroups import Group
    from ..host.spawn import Started
    from ..model.identity import JobProcess, ProcessId
    from .context import Context
    from .drain import Drain
    from .leasing import CardLease
    from .watchdog import Watchdog

STATUS_PATIENCE_S = 2.0
"""The keeper commits the status within milliseconds of the leader's end; after this it is taken as missing."""
FIRST_LOOK_S = 0.01
"""A tree normally empties by itself right after its leader: no search through /proc before this."""
STUCK_PATIENCE_S = 0.1
KILL_PATIENCE_S = 5.0
"""How long KILL is repeated in one go before the survivors are named."""
WITNESS_PATIENCE_S = 10.0
"""How long an orphan may wait for init to reap it; only then does the kernel tell its status (seen: 2 s)."""
WITNESS_EVERY_S = 0.05
CLOCK_JUMP_S = 2.0
JOIN_ROUNDS = 4
"""A tree that forks while it is moved is looked at again, so often."""


class JobControl:
    """One attempt's job. Emits the events of its life."""

    def __init__(self, context: Context, lease: CardLease, *, kept_output: int | None = None) -> None:
        """Nothing exists before `start` or `observe`. `kept_output`: our end of the output, of a former image."""
        self._context, self._lease, self._kept_output = context, lease, kept_output
        self._started: Started | None = None
        self._gear: Gear | None = None
        self._keeper: ProcessId | None = None
        self._job: JobProcess | None = None
        self._keeper_fd: int | None = None
        self._job_fd: int | None = None
        self._drain: Drain | None = None
        self._told_status = False
        self._exec_pending = False
        self._watchdog: Watchdog | None = None
        self._progress: tuple[int, int] = (0, 0)
        self._stuck = self._keeper_gone = self._keeper_done = False
        self._witness_until = 0.0

    @property
    def gear(self) -> Gear | None:
        """What holds the job; None before it was prepared."""
        return self._gear

    @property
    def kept_fds(self) -> dict[str, int]:
        """What must outlive a change of image: the keeper's channel tells that we live, the output is for its death."""
        if self._started is None:
            return {}
        return {"channel": self._started.channel.fileno(), "output": self._started.output_fd}

    # --- start -----------------------------------------------------------------------------------------------------

    def start(self, state: Starting) -> None:
        """Prepare everything, write the manifest, bring keeper and job up to the point before exec.

        Raises:
            PreflightFailed: a limit or the wanted containment cannot be had.
        """
        from ..host.spawn import SpawnFailed
        from .starting import bring_up

        self._context.recorder.forget_status()
        gear = self.prepare()
        try:
            self._started = bring_up(self._context, self._lease, gear, state.devices)
        except SpawnFailed as error:
            self._discard_group()
            self._gear = None
            hint = "see supervisor.log; another --containment may work here"
            self._emit_start_failure("spawn", 71, f"the job could not be started: {error}", hint)
            return
        self._keeper, self._job = self._started.keeper, self._started.job
        self._context.emit(JobReported(self._keeper, self._job))

    def prepare(self) -> Gear:
        """Make what holds the job, once: a run in line does it while it waits.

        Raises:
            PreflightFailed: as `start`.
        """
        if self._gear is None:
            from .starting import prepare_gear

            self._gear = prepare_gear(self._context)
        return self._gear

    def _emit_start_failure(self, code: str, exit_code: int, message: str, hint: str) -> None:
        self._context.emit(StartFailed(Refusal(code, exit_code, message, hint)))

    def let_go(self) -> None:
        """The ids are committed: the job may exec. The answer comes over the error pipe."""
        if self._started is None or self._started.error_fd < 0:
            return
        self._context.loop.add(self._started.error_fd, self._on_exec)
        self._exec_pending = True
        self._open_pidfds()
        self._started.go()
        from . import manifest

        # For people and for a damaged state.json; the ids that count are in the state, committed before this.
        manifest.note_started(self._context, self._started.keeper, self._started.job)

    def _on_exec(self) -> None:
        assert self._started is not None
        self._exec_pending = False
        self._context.loop.remove(self._started.error_fd)
        error = self._started.read_error()
        if error is None:
            self._context.recorder.event("exec", pid=self._started.job.process.pid)
            self._context.emit(JobStarted())
            return
        command = self._context.spec.command[0]
        words = f"{command}: {error.message} (at {error.step})"
        self._emit_start_failure(
            "exec", error.exit_code, words, "check the command, its interpreter line and its rights"
        )

    # --- watch -----------------------------------------------------------------------------------------------------

    def observe(self, state: State, *, rebooted: bool) -> Resumed:
        """What is left of a job that another supervisor started."""
        if isinstance(state, Ended) and not rebooted:
            # Killed between the end and its records: the group still has the last counters, and is still to be removed.
            self._gear = reopen_gear(self._context)
        if isinstance(state, Ended) or rebooted:
            return Resumed(
                job_alive=False, members_alive=False, status=self._context.recorder.read_status(), rebooted=rebooted
            )
        if isinstance(state, (Starting, Running, Stopping, Finalizing)) and state.job is not None:
            self._keeper, self._job = state.keeper, state.job
            self._gear = reopen_gear(self._context)
            self._open_pidfds()
            if isinstance(state, Starting):
                self._await_exec()
        keeper_alive = self._keeper is not None and is_alive(self._keeper)
        wait_briefly(lambda: not self._awaits_reaping(), WITNESS_PATIENCE_S)
        status = self._context.recorder.read_status() or self._read_kernel_record()
        job_alive = self._job_lives() and status is None
        members_alive = keeper_alive or bool(self._job is not None and members.find_members(self._tree()))
        return Resumed(job_alive=job_alive, members_alive=members_alive, status=status)

    def _await_exec(self) -> None:
        """A supervisor died around the word to go: the job either runs, or leaves at once without having run."""
        wait_briefly(lambda: self._has_execed() or not self._job_lives(), STATUS_PATIENCE_S)
        if not self._job_lives():
            wait_briefly(lambda: self._keeper is None or not is_alive(self._keeper), STATUS_PATIENCE_S)

    def forget(self) -> None:
        """The job that was observed never ran: nothing of it counts."""
        self._keeper = self._job = None
        self._keeper_gone = False
        self._keeper_done = False
        self._close_fd(self._keeper_fd)
        self._close_fd(self._job_fd)
        self._keeper_fd = self._job_fd = None
        self._discard_group()
        self._gear = None

    def _close_fd(self, descriptor: int | None) -> None:
        if descriptor is not None:
            self._context.loop.remove(descriptor)
            os.close(descriptor)

    def _job_lives(self) -> bool:
        return self._job is not None and is_alive(self._job.process)

    def _has_execed(self) -> bool:
        """Only the exec'd image has this attempt's marker in its environment; before, it is a copy of a supervisor."""
        environ = None if self._job is None else read_environ(self._job.process.pid)
        return environ is not None and (
            environ.get("HOLDFAST_ATTEMPT") == str(self._context.attempt)
            and environ.get("HOLDFAST_RUN_ID") == self._context.run_id
        )

    def watch(self, state: State) -> None:
        """Listen to keeper and job; done again after adoption."""
        if not isinstance(state, (Running, Stopping)):
            return
        self._open_pidfds()
        if self._keeper_fd is None:
            self._on_keeper_gone()
        self._join_late()
        if self._gear is not None:
            self._begin_watchdog(self._gear)
        self.on_status()

    def _begin_watchdog(self, gear: Gear) -> None:
        limits = self._context.spec.limits
        if not gear.plan.watched and limits.memory_bytes is None and limits.memory_high_bytes is None:
            return
        from .watchdog import Watchdog

        self._watchdog = Watchdog(self._context, gear, self.list_pids)
        self._watchdog.begin()

    def _join_late(self) -> None:
        """Move the tree into its group if that was put off; what a member starts from then on begins there."""
        gear = self._gear
        if gear is None or gear.group is None or not gear.joins_late:
            return
        for _ in range(JOIN_ROUNDS):
            outside = self._list_outside(gear.group)
            for pid in outside:
                try:
                    gear.group.add(pid)
                except ProcessLookupError:
                    continue
                except OSError as error:
                    self._context.recorder.log(f"pid {pid} could not be moved into {gear.group.witness}: {error}")
            if not outside:
                return

    def _list_outside(self, group: Group) -> list[int]:
        """Who of the tree is not in its group. A living keeper knows: all of its namespace descends from it."""
        below = None if self._keeper is None else members.list_descendants(self._keeper)
        if below is None:
            return [m.process.pid for m in members.find_members(self._tree()) if m.proof is not members.Proof.CGROUP]
        inside = set(group.pids() or ())
        return [pid for pid in below if pid not in inside]

    def _open_pidfds(self) -> None:
        if self._keeper_fd is None and self._keeper is not None and not self._keeper_gone:
            self._keeper_fd = open_pidfd(self._keeper)
            if self._keeper_fd is not None:
                self._context.loop.add(self._keeper_fd, self._on_keeper_gone)
        if self._job_fd is None and self._job is not None:
            self._job_fd = open_pidfd(self._job.process)

    def on_status(self) -> None:
        """The leader's status is on file, perhaps."""
        if self._told_status:
            return
        status = self._context.recorder.read_status()
        if status is not None:
            self._told_status = True
            if self._exec_pending:
                # A job of no length: both came in one turn of the loop, and the start happened first.
                self._on_exec()
            self._context.emit(JobExited(status))

    def _on_keeper_gone(self) -> None:
        """Normally the tree is empty now. If the keeper was killed, take its place."""
        self._close_fd(self._keeper_fd)
        self._keeper_fd = None
        self._keeper_gone = True
        self.reap()
        self.on_status()
        if self._job is None:
            return
        if self._context.recorder.was_abandoned():
            self._told_status = True
        if self._told_status:
            self._check_empty()
        elif self._job_lives():
            self._context.recorder.event("keeper_lost")
            self._take_over()
        else:
            self._seek_witness()

    def _take_over(self) -> None:
        """The keeper was killed under a living job: drain its output, learn of its end from the pidfd."""
        assert self._job is not None
        from .drain import Drain, open_output

        kept = self._started.output_fd if self._started is not None else self._kept_output
        pipe = open_output(self._job.process.pid, kept)
        if pipe is None:
            self._context.recorder.log("the job's output can no longer be read; the job goes on")
        else:
            path = self._context.recorder.path(wire.OUTPUT)
            self._drain = Drain(self._context.loop, pipe, path, self._context.spec.output_max_bytes)
        if self._job_fd is not None:
            self._context.loop.add(self._job_fd, self._on_job_gone)

    def _on_job_gone(self) -> None:
        if self._job_fd is not None:
            self._context.loop.remove(self._job_fd)
        self.reap()
        self.on_status()
        if not self._told_status:
            self._seek_witness()
        self._check_empty()

    def on_child(self) -> None:
        """A child of ours has ended: without a keeper it is one of the tree's orphans, perhaps the last."""
        self.reap()
        if self._keeper_gone:
            self._check_empty()

    def _check_empty(self) -> None:
        """Say so when the leader's end is known, its keeper is gone and nothing else is left."""
        if (
            self._told_status
            and self._keeper_fd is None
            and (self._keeper_done or not members.find_members(self._tree()))
        ):
            self._empty()

    def _seek_witness(self) -> None:
        self._witness_until = monotonic_s() + WITNESS_PATIENCE_S
        self._settle_unwitnessed()

    def _settle_unwitnessed(self) -> None:
        """The leader is gone and nobody wrote its status: ask the kernel, else say so."""
        if self._told_status:
            return
        status = self._read_kernel_record()
        if status is None and self._awaits_reaping() and monotonic_s() < self._witness_until:
            self._context.loop.timers.arm("witness", WITNESS_EVERY_S, self._settle_unwitnessed)
            return
        if (
            status is None
            and self._gear is not None
            and self._gear.rung is Rung.PID_NAMESPACE
            and self._job_fd is not None
        ):
            # Source: pid_namespaces(7): when process 1 of a namespace ends, the kernel sends KILL to all others in it.
            status = WaitStatus(None, int(signal.SIGKILL), ended_at=utc_now(), source="namespace")
        if status is not None:
            write_status(
                (self._context.run_id, self._context.attempt), self._context.recorder.path(wire.STATUS), status
            )
            self.on_status()
            self._check_empty()
            return
        self._told_status = True
        self._context.emit(JobVanished())

    def _awaits_reaping(self) -> bool:
        return self._job_fd is not None and not self._job_lives() and witness.awaits_reaping(self._job_fd)

    def _read_kernel_record(self) -> WaitStatus | None:
        return None if self._job_fd is None or self._job_lives() else witness.read_kernel_record(self._job_fd)

    def reap(self) -> None:
        """Take the status of every child of ours that has ended; the job's own is written down before it is reaped."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if self._job is not None and found.si_pid == self._job.process.pid:
                code, number, dumped = describe_status(found.si_code, found.si_status)
                status = WaitStatus(code, number, dumped, ended_at=utc_now(), source="supervisor")
                path = self._context.recorder.path(wire.STATUS)
                if self._context.recorder.read_status() is None:
                    write_status((self._context.run_id, self._context.attempt), path, status)
            elif self._keeper is not None and found.si_pid == self._keeper.pid:
                # It leaves with 0 only without a child, and every process of the tree is or becomes its child.
                self._keeper_done = (found.si_code, found.si_status) == (os.CLD_EXITED, 0)
            try:
                os.waitpid(found.si_pid, 0)
            except ChildProcessError:
                continue

    # --- end -------------------------------------------------------------------------------------------------------

    def _tree(self) -> members.Tree:
        keeper_alive = self._keeper is not None and is_alive(self._keeper)
        probe = () if self._lease.probe_pid is None else (self._lease.probe_pid,)
        return members.Tree(
            self._context.run_id,
            self._context.attempt,
            group=self._gear.group if self._gear else None,
            keeper=self._keeper,
            roots=() if self._job is None else (self._job.process,),
            adopter=None if keeper_alive else os.getpid(),
            bystanders=frozenset((*probe, *self._context.notifying, *self._context.helpers)),
        )

    def list_processes(self) -> list[ProcessId]:
        """The processes of the tree as it is now."""
        return [member.process for member in members.find_members(self._tree())]

    def list_pids(self) -> list[int]:
        """The pids of the tree as it is now."""
        return [member.process.pid for member in members.find_members(self._tree())]

    def terminate(self, state: State) -> None:
        """TERM every process of the tree, and CONT after it for those that are stopped."""
        found = members.find_members(self._tree())
        refused = members.signal_members(found, signal.SIGTERM)
        self._progress = self._measure_progress()
        self._context.recorder.event(
            "term_sent",
            processes=len(found),
            refused=[item.why for item in refused],
            state=type(state).__name__.lower(),
        )

    def is_progressing(self) -> bool:
        """Whether the job's shutdown wrote anything into the run directory since this was asked last."""
        before, self._progress = self._progress, self._measure_progress()
        return self._progress != before

    def _measure_progress(self) -> tuple[int, int]:
        """Total bytes and newest change below checkpoints and artifacts; bounded."""
        total, newest, left = 0, 0, 20_000
        pending = [self._context.shared(wire.CHECKPOINTS), self._context.shared(wire.ARTIFACTS)]
        while pending and left > 0:
            try:
                entries = list(os.scandir(pending.pop()))
            except OSError:
                continue
            for entry in entries:
                left -= 1
                try:
                    facts = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                except OSError:
                    continue
                total += facts.st_size
                newest = max(newest, facts.st_mtime_ns)
        return total, newest

    def kill(self, state: State) -> None:
        """KILL until nothing is left, or name what survives."""
        self._kill_now(type(state).__name__.lower())

    def _kill_now(self, why: str) -> None:
        began = monotonic_s()
        in_namespace = self._gear is not None and self._gear.rung is Rung.PID_NAMESPACE
        # What survived once is asked again briefly: signals and wishes must not wait for it.
        patience_s = STUCK_PATIENCE_S if self._stuck else KILL_PATIENCE_S
        emptied = members.empty_tree(self._tree(), deadline_s=patience_s, end_keeper=in_namespace)
        self._stuck = not emptied.empty
        self._context.recorder.event(
            "kill_sent",
            processes=emptied.killed,
            survivors=len(emptied.survivors),
            elapsed_s=round(monotonic_s() - began, 4),
            state=why,
        )
        self.reap()
        if not emptied.empty:
            words = [members.describe_blocked(member.process.pid) for member in emptied.survivors]
            self._context.emit(TreeStuck(tuple(item.describe() for item in words if item is not None)))
            return
        if self._keeper is not None and self._keeper_fd is not None:
            # The keeper leaves by itself once it has written the status and drained the output: its exit is the proof.
            self._context.loop.timers.arm("keeper", STATUS_PATIENCE_S, self._on_keeper_late)
            return
        self._empty()

    def _on_keeper_late(self) -> None:
        """Everything else is gone but the keeper hangs on (its disk?): it goes too, it has nothing left to keep."""
        if self._keeper is None or self._keeper_fd is None:
            return
        self._context.recorder.log("the keeper does not leave though its tree is empty; ending it")
        try:
            signal.pidfd_send_signal(self._keeper_fd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def empty(self, state: State, gentle_s: float) -> None:
        """Prove the tree empty; TERM and later KILL what is left of it."""
        if self._job is None:
            self._empty()
            return
        if self._started is not None and self._started.go_fd >= 0:
            # It still waits for the word to go: without it, it leaves by itself, and its keeper after it.
            self._open_pidfds()
            self._started.close()
        if not self._may_linger():
            self._empty()
        elif gentle_s <= 0:
            self._kill_now(type(state).__name__.lower())
        else:
            self._context.loop.timers.arm("leftovers", FIRST_LOOK_S, lambda: self._look_at_leftovers(gentle_s))

    def _may_linger(self) -> bool:
        return self._keeper_fd is not None or not (self._keeper_done or not members.find_members(self._tree()))

    def _look_at_leftovers(self, gentle_s: float) -> None:
        found = members.find_members(self._tree())
        if found:
            names = [f"{member.name} (pid {member.process.pid})" for member in found[:20]]
            self._context.recorder.event("leftovers", count=len(found), processes=names)
            members.signal_members(found, signal.SIGTERM)
        elif self._keeper_fd is None:
            self._empty()
            return
        self._context.loop.timers.arm("leftovers", gentle_s, lambda: self._kill_now("finalizing"))

    def _empty(self) -> None:
        for key in ("leftovers", "keeper", "watchdog"):
            self._context.loop.timers.disarm(key)
        self.reap()
        if self._drain is not None:
            self._drain.close()
            self._drain = None
        self._context.emit(TreeEmptied(self._context.recorder.read_stop()))

    def correct_duration(self, wall_s: float, ended_epoch_s: float) -> float:
        """The job's duration; by the clock that nobody can set where the wall clock has jumped meanwhile.

        The job's start in ticks since boot is part of its identity; the time since its end is short, and taken from the
        wall clock.
        """
        if self._job is None:
            return wall_s
        since_start_s = boottime_ns() / 1e9 - self._job.process.start_ticks / os.sysconf("SC_CLK_TCK")
        steady_s = max(0.0, since_start_s - max(0.0, epoch_s() - ended_epoch_s))
        return steady_s if abs(steady_s - wall_s) > CLOCK_JUMP_S else wall_s

    def read_usage(self) -> dict[str, object]:
        """The group's counters; empty without a group."""
        if self._gear is None or self._gear.group is None:
            return {}
        usage: dict[str, object] = wire.encode(self._gear.group.usage())
        return usage

    def close(self) -> dict[str, object]:
        """After the end: read the group's last counters, remove it, close what is open. Answers the counters."""
        # A group that was prepared in line for a job that never came has counted nothing.
        usage = {} if self._job is None else self.read_usage()
        self._discard_group()
        if self._started is not None:
            self._started.close()
            self._started = None
        return usage

    def _discard_group(self) -> None:
        group = self._gear.group if self._gear else None
        if group is not None and not wait_briefly(group.remove, 0.5):
            self._context.recorder.log(f"control group {group.witness} could not be removed")
