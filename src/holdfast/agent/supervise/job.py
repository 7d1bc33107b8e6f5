"""The job's processes under one supervisor: start, watch, end, and prove that nothing is left.

The keeper's exit is the normal proof that the tree is empty. Where the keeper itself was killed, the supervisor (a
child subreaper) inherits its children and finds the rest by cgroup, namespace, descent and marker.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from holdfast.core.run.events import (
    JobExited,
    JobReported,
    JobStarted,
    JobVanished,
    Resumed,
    StartFailed,
    StopWanted,
    TreeEmptied,
    TreeStuck,
)
from holdfast.host.clock import boottime_ns, epoch_s, monotonic_s, utc_now
from holdfast.host.contain import members
from holdfast.host.contain.create import find_group
from holdfast.host.job.keeper import describe_status, write_status
from holdfast.host.job.output import OutputFile
from holdfast.host.job.spawn import SpawnFailed
from holdfast.host.process import pidfd, witness
from holdfast.host.process.processes import has_pending, is_alive, read_command, read_environ
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.identity import WaitStatus
from holdfast.model.job import IsolationLevel
from holdfast.model.run import Ended, Finalizing, Refusal, Running, Starting, State, Stopping

from .change_limits import LimitsRefused, change_limits
from .end.shutdown_progress import ShutdownProgress
from .output_takeover import OutputTakeover, open_output
from .start import manifest
from .start.bring_up import bring_up, prepare_containment, read_secrets
from .start.containment import Containment, join_group, reopen_containment
from .start.same_code import refuse_changed_code
from .watch.limits import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.job.spawn import StartedJob
    from holdfast.model.identity import JobProcess, ProcessId
    from holdfast.model.job import JobSpec

    from .container.control import ContainerControl
    from .context import SupervisorContext
    from .lease.lease import Lease

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
YOUNG_S = 5.0
"""A process that was begun so shortly before the leader left was to go on without it."""
OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
CONTAINER_LOOK_S = 0.05


class JobControl:
    """One attempt's job. Emits the events of its life."""

    def __init__(self, context: SupervisorContext, lease: Lease) -> None:
        """Nothing exists before `start` or `observe`."""
        self._context, self._lease = context, lease
        self._started: StartedJob | None = None
        self._containment: Containment | None = None
        self._keeper: ProcessId | None = None
        self._job: JobProcess | None = None
        self._held_keeper: pidfd.HeldProcess | None = None
        self._held_job: pidfd.HeldProcess | None = None
        self._drain: OutputTakeover | None = None
        self._told_status = False
        self._exec_pending = False
        self._let_go_at = ""
        self._watchdog: Watchdog | None = None
        self._progress = ShutdownProgress((context.shared(wire.CHECKPOINTS), context.shared(wire.ARTIFACTS)))
        self._stuck = self._keeper_gone = self._keeper_done = self._resumed = False
        self._witness_until = 0.0
        self._container: ContainerControl | None = None
        if context.spec.container.image is not None:
            self._container = _open_container(context, lease, self._on_container_emptied)

    @property
    def containment(self) -> Containment | None:
        """What holds the job; None before it was prepared."""
        return self._containment

    # --- start -----------------------------------------------------------------------------------------------------

    def start(self, state: Starting) -> None:
        """Prepare everything, write the manifest, bring keeper and job up to the point before exec.

        Raises:
            PreflightFailed: a limit, the containment or a secret cannot be had, or an automatic attempt's code was
                changed.
        """
        self._context.recorder.forget_status()
        refuse_changed_code(self._context)
        secrets = read_secrets(self._context)
        containment = self.prepare()
        if self._container is None:
            self._bring_up(state, containment, secrets)
            return
        environment, _ = manifest.build_job(self._context, state.devices, self._lease.inventory, quiet=True)
        values = {**environment.values, **secrets}
        self._container.create(state.devices, values, lambda: self._bring_up(state, containment, secrets))

    def _bring_up(self, state: Starting, containment: Containment, secrets: dict[str, str]) -> None:
        devices = state.devices
        try:
            self._started = bring_up(self._context, self._lease, containment, devices, secrets, self._container)
        except SpawnFailed as error:
            self._discard_group()
            self._containment = None
            hint = "see supervisor.log; another --containment may work here"
            self._emit_start_failure("spawn", 71, f"the job could not be started: {error}", hint)
            return
        self._keeper, self._job = self._started.keeper, self._started.job
        self._context.emit(JobReported(self._keeper, self._job))

    def prepare(self) -> Containment:
        """Make what holds the job, once: a run in line does it while it waits.

        Raises:
            PreflightFailed: as `start`.
        """
        if self._containment is None:
            self._containment = prepare_containment(self._context, self._container)
        return self._containment

    def _emit_start_failure(self, code: str, exit_code: int, message: str, hint: str) -> None:
        self._context.emit(StartFailed(Refusal(code, exit_code, message, hint)))

    def let_go(self) -> None:
        """The ids are committed: the job may exec. The answer comes over the error pipe."""
        if self._started is None or self._started.error_fd < 0:
            return
        self._hold_processes()
        self._let_go_at = utc_now()
        try:
            self._started.go()
        except OSError as error:
            words = f"the job could not be told to begin: {error.strerror}"
            self._emit_start_failure("spawn", 71, words, "look at the kernel's log")
            return
        self._context.loop.add(self._started.error_fd, self._on_exec)
        self._exec_pending = True

        # For people and for a damaged state.json; the ids that count are in the state, committed before this.
        manifest.note_started(self._context, self._started.keeper, self._started.job)

    def _on_exec(self) -> None:
        assert self._started is not None
        self._exec_pending = False
        self._context.loop.remove(self._started.error_fd)
        error = self._started.read_error()
        if error is None and self._container is not None:
            # The runtime's client runs; the job does when its gate is open.
            assert self._containment is not None
            self._container.await_start(self._containment, self._started.job.process)
            return
        if error is None:
            self._context.recorder.event("exec", pid=self._started.job.process.pid)
            self._context.emit(JobStarted(self._let_go_at))
            return
        command = self._context.spec.command[0]
        words = f"{command}: {error.message} (at {error.step})"
        self._emit_start_failure(
            "exec", error.exit_code, words, "check the command, its interpreter line and its rights"
        )

    # --- watch -----------------------------------------------------------------------------------------------------

    def observe(self, state: State, *, rebooted: bool) -> Resumed:
        """What is left of a job that another supervisor started."""
        self._resumed = True
        if isinstance(state, Ended) and not rebooted:
            # Killed between the end and its records: the group still has the last counters, and is still to be removed.
            self._reopen()
        if isinstance(state, Ended) or rebooted:
            return Resumed(job_alive=False, members_alive=False, status=self.read_status(), rebooted=rebooted)
        if isinstance(state, (Starting, Running, Stopping, Finalizing)) and state.job is not None:
            self._keeper, self._job = state.keeper, state.job
            self._reopen()
            self._hold_processes()
            if isinstance(state, Starting):
                self._await_exec()
        keeper_alive = self._keeper is not None and is_alive(self._keeper)
        wait_briefly(lambda: not self._awaits_reaping(), WITNESS_PATIENCE_S)
        # Its life first, then the records: a job that ends in between has left one, or is watched as one that lives.
        lived = self._job_lives()
        left = None
        if self._container is not None and not lived and isinstance(state, (Running, Stopping)):
            left = self._container.find_end_alone()
        status = self.read_status() or left or (None if self.is_alone else self._read_kernel_record())
        job_alive = (lived or self.is_alone) and status is None
        members_alive = keeper_alive or bool(self._job is not None and members.find_members(self._tree()))
        return Resumed(job_alive=job_alive, members_alive=members_alive, status=status)

    def _reopen(self) -> None:
        self._containment = reopen_containment(self._context)
        if self._container is not None:
            self._containment = self._container.resume(self._containment)

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
        self._let_go_of(self._held_keeper)
        self._let_go_of(self._held_job)
        self._held_keeper = self._held_job = None
        self._discard_group()
        self._containment = None

    def _let_go_of(self, process: pidfd.HeldProcess | None) -> None:
        if process is not None:
            self._context.loop.remove_process(process)
            process.close()

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
        self._hold_processes()
        if self._container is not None:
            self._container.take_up(state.job.process, begins=isinstance(state, Running))
        if self._held_keeper is None:
            self._on_keeper_gone()
        containment = self._containment
        if containment is not None:
            if containment.group is not None and containment.joins_late:
                join_group(containment.group, self._keeper, self._tree, self._context.recorder.log)
            self._begin_watchdog(containment)
        self.on_status()
        if self._container is not None and not self._container.lives():
            self._on_container_emptied()

    def change_limits(self, after: JobSpec, *, force: bool) -> None:
        """Hold the running tree by other limits.

        Raises:
            LimitsRefused: they stay as they were.
        """
        if self._containment is None:
            raise LimitsRefused("what holds its limits is not known")
        change_limits(self._context, self._containment, self.list_processes, after, force=force)

    def watch_limits(self) -> None:
        """Watch the limits that the job has now."""
        self._context.loop.timers.disarm("watchdog")
        self._watchdog = None
        if self._containment is not None:
            self._begin_watchdog(self._containment)

    def _begin_watchdog(self, containment: Containment) -> None:
        limits = self._context.spec.limits
        if not containment.plan.watched and limits.memory_bytes is None and limits.memory_high_bytes is None:
            return

        self._watchdog = Watchdog(self._context, containment, self.list_pids)
        self._watchdog.begin()

    def _hold_processes(self) -> None:
        if self._held_keeper is None and self._keeper is not None and not self._keeper_gone:
            self._held_keeper = pidfd.hold_process(self._keeper)
            if self._held_keeper is not None:
                self._context.loop.add_process(self._held_keeper, self._on_keeper_gone)
        if self._held_job is None and self._job is not None:
            self._held_job = pidfd.hold_process(self._job.process)

    def read_status(self) -> WaitStatus | None:
        """The leader's end as it is on file; of a container the command's own. None where there is none (yet)."""
        status = self._context.recorder.read_status()
        return status if status is None or self._container is None else self._container.read_status(status)

    def on_status(self) -> None:
        """The leader's status is on file, perhaps."""
        if self._told_status or (self._container is not None and self._container.comes_up):
            return
        status = self.read_status()
        if status is not None:
            self._told_status = True
            if self._exec_pending:
                # A job of no length: both came in one turn of the loop, and the start happened first.
                self._on_exec()
            request = None if self._container is None else self._container.find_stop(status)
            if request is not None:
                self._context.recorder.event("stop_requested", by=request.by, force=False, reason=request.detail)
                self._context.emit(StopWanted(request))
            self._context.emit(JobExited(status))

    @property
    def is_alone(self) -> bool:
        """Whether the job is in a container that goes on, or has ended, without the client that is its leader here."""
        return self._container is not None and self._container.is_alone

    def _on_container_emptied(self) -> None:
        """All inside have ended; where the client left before, its end tells nothing, and this is the job's."""
        if not self.is_alone or self._told_status:
            return
        self.on_status()
        if not self._told_status:
            self._told_status = True
            self._context.emit(JobVanished())
        self._check_empty()

    def _on_keeper_gone(self) -> None:
        """Normally the tree is empty now. If the keeper was killed, take its place."""
        self._let_go_of(self._held_keeper)
        self._held_keeper = None
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
        """The keeper was killed under a living job: drain its output, learn of its end."""
        assert self._job is not None

        pipe = open_output(self._job.process.pid, None if self._started is None else self._started.output_fd)
        if pipe is None:
            self._context.recorder.log("the job's output can no longer be read; the job goes on")
        else:
            context = self._context
            path, attempt = context.recorder.path(wire.OUTPUT), (context.run_id, context.attempt)
            output = OutputFile(path, context.spec.output_max_bytes, attempt)
            self._drain = OutputTakeover(context.loop, pipe, output)
        if self._held_job is not None:
            self._context.loop.add_process(self._held_job, self._on_job_gone)

    def _on_job_gone(self) -> None:
        if self._held_job is not None:
            self._context.loop.remove_process(self._held_job)
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
        if self._told_status and self._held_keeper is None and self._is_empty():
            self._empty()

    def _is_empty(self) -> bool:
        if self._container is not None and self._container.lives():
            # Of a daemon's children our keeper knows nothing.
            return False
        return self._keeper_done or not members.find_members(self._tree())

    def _seek_witness(self) -> None:
        self._witness_until = monotonic_s() + WITNESS_PATIENCE_S
        self._settle_unwitnessed()

    def _settle_unwitnessed(self) -> None:
        """The leader is gone and nobody wrote its status: ask the kernel, else say so."""
        if self._told_status or self.is_alone:
            return
        # In this order: whoever reaps it in between leaves the record.
        unreaped = self._awaits_reaping()
        status = self._read_kernel_record()
        if status is None and unreaped and monotonic_s() < self._witness_until:
            self._context.loop.timers.arm("witness", WITNESS_EVERY_S, self._settle_unwitnessed)
            return
        if (
            status is None
            and self._containment is not None
            and self._containment.level is IsolationLevel.PID_NAMESPACE
            and self._held_job is not None
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
        return self._held_job is not None and not self._job_lives() and witness.awaits_reaping(self._held_job)

    def _read_kernel_record(self) -> WaitStatus | None:
        return None if self._held_job is None or self._job_lives() else witness.read_kernel_record(self._held_job)

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

    def _tree(self) -> members.RunTree:
        keeper_alive = self._keeper is not None and is_alive(self._keeper)
        probe = () if self._lease.probe_pid is None else (self._lease.probe_pid,)
        tree = members.RunTree(
            self._context.run_id,
            self._context.attempt,
            group=self._containment.group if self._containment else None,
            keeper=self._keeper,
            roots=() if self._job is None else (self._job.process,),
            adopter=None if keeper_alive else os.getpid(),
            bystanders=frozenset((*probe, *self._context.notifying, *self._context.helpers)),
        )
        return tree if self._container is None else self._container.complete(tree)

    def list_processes(self) -> list[ProcessId]:
        """The processes of the tree as it is now."""
        return [member.process for member in members.find_members(self._tree())]

    def list_pids(self) -> list[int]:
        """The pids of the tree as it is now."""
        return [member.process.pid for member in members.find_members(self._tree())]

    def terminate(self, state: State) -> None:
        """TERM every process of the tree, and CONT after it for those that are stopped; once, if the place did so."""
        found = self._choose_gentle(members.find_members(self._tree()))
        heard = self._has_heard_place()
        refused = () if heard else members.signal_members(found, signal.SIGTERM)
        if self._container is not None:
            self._container.press(signal.SIGTERM, refused=bool(refused))
        self._progress.begin()
        self._context.recorder.event(
            "term_sent",
            processes=len(found),
            refused=[item.why for item in refused],
            state=type(state).__name__.lower(),
            **({"by": "the place"} if heard else {}),
        )

    def _has_heard_place(self) -> bool:
        """Whether the place has sent TERM to all that descends from us, the job with it, and not to us alone.

        Told by a child of ours that has no part in the job, is in a session of its own as the job is, and blocks
        signals (`place.foreground.relay`). A second TERM means "at once" to some handlers, and ends an interpreter that
        is on its way out. Slurm does so with proctrack/linuxproc, not with proctrack/cgroup. Source: kill_proc_tree of
        proctrack/linuxproc, proctrack_p_signal of proctrack/cgroup; measured with 22.05.8.
        """
        foreground = self._context.foreground
        if foreground is None or self._container is not None:
            # What a daemon runs does not descend from us.
            return False
        return any(has_pending(pid, signal.SIGTERM) for pid in foreground.bystanders)

    def _choose_gentle(self, found: list[members.Member]) -> list[members.Member]:
        return found if self._container is None else self._container.choose_gentle(found)

    def is_progressing(self) -> bool:
        """Whether the job's shutdown wrote anything into the run directory since this was asked last."""
        return self._progress.has_moved()

    def kill(self, state: State) -> None:
        """KILL until nothing is left, or name what survives."""
        self._kill_now(type(state).__name__.lower())

    def _kill_now(self, why: str) -> None:
        began = monotonic_s()
        in_namespace = self._containment is not None and self._containment.level is IsolationLevel.PID_NAMESPACE
        # What survived once is asked again briefly: signals and wishes must not wait for it.
        patience_s = STUCK_PATIENCE_S if self._stuck else KILL_PATIENCE_S
        if self._container is not None:
            self._container.settle()
            if not self._stuck:
                self._container.end_paused()
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
            if self._container is not None:
                self._container.press(signal.SIGKILL, refused=bool(emptied.refused))
            words = [members.describe_blocked(member.process.pid) for member in emptied.survivors]
            self._context.emit(TreeStuck(tuple(item.describe() for item in words if item is not None)))
            return
        if self._keeper is not None and self._held_keeper is not None:
            # The keeper leaves by itself once it has written the status and drained the output: its exit is the proof.
            self._context.loop.timers.arm("keeper", STATUS_PATIENCE_S, self._on_keeper_late)
            return
        self._empty()

    def _on_keeper_late(self) -> None:
        """Everything else is gone but the keeper hangs on (its disk?): it goes too, it has nothing left to keep."""
        if self._keeper is None or self._held_keeper is None:
            return
        self._context.recorder.log("the keeper does not leave though its tree is empty; ending it")
        self._held_keeper.send(signal.SIGKILL)

    def empty(self, state: State, gentle_s: float) -> None:
        """Prove the tree empty; TERM and later KILL what is left of it."""
        if self._job is None:
            self._empty()
            return
        if self._started is not None and self._started.go_fd >= 0:
            # It still waits for the word to go: without it, it leaves by itself, and its keeper after it.
            self._hold_processes()
            self._started.close()
        if self._container is not None:
            self._container.abandon()
        if not self._may_linger():
            self._empty()
        elif gentle_s <= 0:
            self._kill_now(type(state).__name__.lower())
        else:
            self._context.loop.timers.arm("leftovers", FIRST_LOOK_S, lambda: self._look_at_leftovers(gentle_s))

    def _may_linger(self) -> bool:
        return self._held_keeper is not None or not self._is_empty()

    def _look_at_leftovers(self, gentle_s: float) -> None:
        found = members.find_members(self._tree())
        if found:
            names = [f"{member.name} (pid {member.process.pid})" for member in found[:20]]
            young = [name for member, name in zip(found, names, strict=False) if _is_unfinished(member.process)]
            self._context.recorder.event("leftovers", count=len(found), processes=names, young=young)
            refused = members.signal_members(self._choose_gentle(found), signal.SIGTERM)
            if self._container is not None:
                self._container.press(signal.SIGTERM, refused=bool(refused))
                self._await_container(gentle_s)
                return
        elif self._held_keeper is None:
            self._empty()
            return
        self._context.loop.timers.arm("leftovers", gentle_s, lambda: self._kill_now("finalizing"))

    def _await_container(self, gentle_s: float) -> None:
        """Look until all that outlived the leader is gone: of a daemon's children nobody tells us. At last KILL."""
        if gentle_s <= 0:
            self._kill_now("finalizing")
        elif self._is_empty() and (self._held_keeper is None or self._keeper_done):
            self._empty()
        else:
            next_s = gentle_s - CONTAINER_LOOK_S
            self._context.loop.timers.arm("leftovers", CONTAINER_LOOK_S, lambda: self._await_container(next_s))

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
        if self._containment is None or self._containment.group is None:
            return {}
        usage: dict[str, object] = wire.encode(self._containment.group.usage())
        return usage

    def close(self) -> dict[str, object]:
        """After the end: read the group's last counters, remove it, close what is open. Answers the counters."""
        # A group that was prepared in line for a job that never came has counted nothing.
        usage = {} if self._job is None else self.read_usage()
        self._discard_group()
        if self._resumed and (left := find_group(f"{self._context.run_id}.{self._context.attempt}")) is not None:
            # Its first supervisor was killed before it had written down what it had made.
            left.remove()
        if self._started is not None:
            self._started.close()
            self._started = None
        return usage

    def read_mismatch(self) -> str:
        """What of the cards in its container was not as leased; empty without one, or when all was."""
        return "" if self._container is None else self._container.read_mismatch()

    def ask_memory(self, then: Callable[[bool], None]) -> None:
        """Call `then` with whether the kernel killed within its tree for want of memory (LIM-01)."""
        kills = self.read_usage().get("oom_kills")
        if self._container is None or (isinstance(kills, int) and kills > 0):
            then(isinstance(kills, int) and kills > 0)
        else:
            self._container.ask_memory(then)

    def remove_container(self) -> None:
        """After the exit record: nothing of the container is needed any more."""
        if self._container is not None:
            self._container.remove()

    @property
    def is_removing(self) -> bool:
        """Whether its container is still being removed, which is the last that is done of a run."""
        return self._container is not None and self._container.removal.under_way

    def stop_removing(self) -> None:
        """Leave its container to `holdfast reconcile`."""
        if self._container is not None:
            self._container.removal.stop()

    def _discard_group(self) -> None:
        group = self._containment.own_group if self._containment else None
        if group is not None and not wait_briefly(group.remove, 0.5):
            self._context.recorder.log(f"control group {group.witness} could not be removed")


def _open_container(context: SupervisorContext, lease: Lease, on_emptied: Callable[[], None]) -> ContainerControl:
    from .container.control import ContainerControl  # lazy: for jobs in containers alone

    return ContainerControl(context, lease, on_emptied)


def _is_unfinished(process: ProcessId) -> bool:
    """Whether a process that is still there when the leader has left was begun a moment before: work of its own.

    Not a helper that ran beside the job all the time, nor one of Python's own, which notice the end by themselves.
    """
    age_s = boottime_ns() / 1e9 - process.start_ticks / os.sysconf("SC_CLK_TCK")
    command = read_command(process.pid) or ""
    return age_s < YOUNG_S and not any(helper in command for helper in OF_PYTHON)
