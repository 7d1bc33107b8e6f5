"""A command of a person's own, run in the directory and with the environment of a run, on the run's box.

Where the run is in a container of Podman or Docker the command runs in there and ends with it. Else it is no part of
the run: it lacks the marker by which processes of a run are found and ended, it is in no group of the run's, and none
of the run's limits hold for it. What the run was told about itself goes with the marker, so that a training library in
it takes itself for one that was started by hand; where the run's files are it is told.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.page.container_view import find_living
from holdfast.agent.view.run_view import RunReach, RunView, recorded_processes
from holdfast.core.container.command import build_enter_command
from holdfast.core.job.environment import FLIGHT_FILES
from holdfast.core.job.redact import REDACTED
from holdfast.host.process.processes import read_environ
from holdfast.model.errors import NoSuchRun, StorageError, UsageError
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from holdfast.model.container import ContainerRecord

EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
"""As shells use them."""
KEPT = frozenset({"HOLDFAST_RUN_DIR", "HOLDFAST_CHECKPOINT_DIR", "HOLDFAST_ARTIFACT_DIR"})
"""What a command beside a run is told of it."""
CALLERS = frozenset({"TERM", "COLORTERM", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK"})
"""What belongs to the terminal or the connection of whoever asks."""
_MARK = re.compile(r"HOLDFAST_[A-Z_]+", re.ASCII)
GRACE_S = 5.0
"""How long a command may take to end after its connection has."""


@record
class Setting:
    """Where and with what a command beside a run is run; `notices` are for whoever asked.

    `container` is the one in which it is run, `environ` then its runtime's and `left_out` what the command has not.
    """

    run_id: str
    workdir: str
    environ: dict[str, str]
    notices: tuple[str, ...] = ()
    container: ContainerRecord | None = None
    left_out: tuple[str, ...] = ()


def read_setting(run_dir: str, environ: Mapping[str, str]) -> Setting:
    """The working directory and the environment of the newest attempt of a run.

    While the job lives its environment is the one that it was started with, as the kernel has it. Otherwise it is
    `environ` with what was recorded of the job's: no secret is in that.

    Raises:
        NoSuchRun: its record cannot be read.
        UsageError: it runs, or was last seen, on another box.
        StorageError: its working directory is not there.
    """
    view = observe_run(run_dir)
    spec = view.spec
    workdir = spec.get("workdir")
    if not isinstance(workdir, str):
        raise NoSuchRun(f"{view.run_id}: its record cannot be read", hint=f"holdfast show {view.run_id} says why")
    if view.reach is RunReach.ELSEWHERE and not view.over:
        raise UsageError(
            f"{view.run_id} is at {view.host or 'another box'}, and this is another machine: its cards are not here",
            hint=f"on a node: srun --jobid=N --overlap --pty sh, with the N of `holdfast show {view.run_id}`"
            if view.scheduler
            else "name the place where it runs: PLACE:RUN",
        )
    try:
        os.listdir(workdir)
    except OSError as error:
        raise StorageError(f"{view.run_id}: its working directory {workdir}: {error.strerror}") from error
    notices = [] if not view.over else [f"{view.run_id} has ended: no card is held for this command"]
    container = None if view.over or view.reach is not RunReach.HERE else find_living(view.attempt_dir)
    if container is not None and container.opened:
        own = {**environ, **container.settings}
        return Setting(view.run_id, workdir, own, tuple(notices), container, _list_left_out(view))
    wish = spec.get("container")
    image = wish.get("image") if isinstance(wish, dict) else None
    # Of a run with an image the kernel has the environment of the runtime's client.
    found = None if image else _read_live(view)
    if image:
        notices.append(f"{view.run_id}: this is on the box, not in the image {image}")
    elif found is None and not view.over:
        notices.append(f"{view.run_id}: its job does not run, so this is what was recorded of its environment")
    if found is None:
        found = {**environ, **_read_recorded(view)}
    return Setting(view.run_id, workdir, _take_out(found, environ, view.run_dir), tuple(notices))


def _read_live(view: RunView) -> dict[str, str] | None:
    if view.state is None or view.over or view.reach is not RunReach.HERE:
        return None
    job = recorded_processes(view.state.state)[1]
    found = None if job is None else read_environ(job.pid)
    # The pid may be another's by now, or the job may not have been let go yet.
    return found if found and found.get("HOLDFAST_RUN_ID") == view.run_id else None


def _read_recorded(view: RunView) -> dict[str, str]:
    recorded: dict[str, str] = {}
    for source in (view.spec.get("env"), view.manifest.get("environment")):
        if isinstance(source, dict):
            recorded.update({str(name): str(value) for name, value in source.items() if value != REDACTED})
    return recorded


def _list_left_out(view: RunView) -> tuple[str, ...]:
    """By what a process would take itself for one of the run."""
    added = view.manifest.get("environment_added")
    names = map(str, added) if isinstance(added, list) else ()
    return tuple(name for name in names if (_MARK.fullmatch(name) and name not in KEPT) or name in FLIGHT_FILES)


def _take_out(found: Mapping[str, str], environ: Mapping[str, str], run_dir: str) -> dict[str, str]:
    """Without what makes a process one of the run, with the caller's own terminal."""
    own = {
        name: value
        for name, value in found.items()
        if (not name.startswith("HOLDFAST_") or name in KEPT)
        and name not in CALLERS
        and not (name in FLIGHT_FILES and value.startswith(f"{run_dir}/"))
    }
    return {**own, **{name: environ[name] for name in CALLERS if name in environ}}


def become(setting: Setting, argv: Sequence[str]) -> int:
    """Replace this process by the command; answers only when that is not possible.

    Raises:
        OSError: it cannot be started.
    """
    os.chdir(setting.workdir)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and that would be handed on
    words = _enter(setting, argv)
    os.execvpe(words[0], words, {**setting.environ, "PWD": setting.workdir})


def _enter(setting: Setting, argv: Sequence[str]) -> list[str]:
    """The command as it is started here."""
    container = setting.container
    if container is None:
        return list(argv)
    terminal = os.isatty(0) and os.isatty(1)
    words = build_enter_command(container.id, setting.workdir, tuple(argv), unset=setting.left_out, terminal=terminal)
    return [container.program, *words]


def find_exit_code(error: OSError) -> int:
    """What a shell would say of a command that could not be started."""
    return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE


class _Heard(Exception):
    """A signal came."""


def run_for_caller(setting: Setting, argv: Sequence[str]) -> int:
    """Run the command until it ends or whoever asked for it has gone, and answer as a shell: 128 + N for signal N.

    Its group gets HUP when this process is hung up, and KILL after `GRACE_S`.

    Raises:
        OSError: it cannot be started.
    """
    heard: list[int] = []
    waiting = False

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if waiting:
            raise _Heard

    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)
    process = subprocess.Popen(
        _enter(setting, argv),
        cwd=setting.workdir,
        env={**setting.environ, "PWD": setting.workdir},
        start_new_session=True,
    )
    try:
        waiting = True
        if not heard:
            process.wait()
    except _Heard:
        pass
    finally:
        waiting = False
    if process.returncode is None:
        _end_group(process)
    code = process.wait()
    return code if code >= 0 else 128 - code


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """HUP, then KILL: all of its group, as a terminal that closes does."""
    for number in (signal.SIGHUP, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
