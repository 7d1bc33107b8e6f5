"""Making a run: its directory, what is written once, its first attempt. After this a supervisor can be started.

The directory is made with mkdir and nothing else decides whether a run id is free (RAIL-08). The resolved job, its
hash, who asked, the copies of what will run and the repository's state are all in place before anything starts;
``run.json`` is committed last but for the attempt, so a directory with an attempt is always complete.

Nothing secret is stored: a job that names a secret in its command or environment is refused with the way to pass it,
because a recorded job could not be started again without it, and a command line is open to every user of the box.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import __version__
from ..core.redact import is_secret_name, is_secret_value, redact_argv, redact_code, redact_text
from ..core.scripts import asks_for_itself, find_shell_script, is_shell, split_shebang
from ..host import files
from ..host.clock import boot_id, utc_now
from ..host.processes import user_name
from ..host.snapshot import LOCK_NAMES, GitReader, copy_file, find_repository, find_upwards
from ..model import wire
from ..model.errors import NoSuchRun, NotPermitted, StorageError, UsageError
from ..model.ids import build_run_id, is_run_id
from ..model.origin import CodeSnapshot, FileCopy, PinnedScript, RunOrigin
from ..model.run import Created, RunState
from .handbook import render_handbook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.requeuing import Placement
    from ..model.job import JobSpec
    from ..model.queue import CellRef

DEFAULT_RUNS = ".local/share/holdfast/runs"
MOST_ATTEMPTS = 10_000


def choose_runs_root(environ: Mapping[str, str], asked: str | None = None) -> str:
    """Where runs are kept: `asked` (--runs), else HOLDFAST_RUNS, else ~/.local/share/holdfast/runs; absolute."""
    return os.path.abspath(asked or environ.get("HOLDFAST_RUNS") or os.path.join(os.path.expanduser("~"), DEFAULT_RUNS))


def create_run(
    spec: JobSpec,
    runs_root: str,
    *,
    argv: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    run_id: str | None = None,
    cell: CellRef | None = None,
) -> tuple[str, str]:
    """Make a run with its first attempt in state `created`; answers (run directory, run id).

    Args:
        spec: The resolved job; paths are absolute.
        runs_root: Made when missing, mode 0700.
        argv: The command line of holdfast, for the record; redacted here.
        cwd: From where it was called.
        environ: The caller's environment, for finding git; not stored.
        run_id: A preset id; refused when it exists.
        cell: The queue's cell that this is the run of.

    Raises:
        UsageError: the job names a secret, or the preset id is malformed or taken.
        NotPermitted: the runs root belongs to somebody else.
        StorageError: the run directory cannot be written.
    """
    refuse_secrets(spec)
    git = GitReader(spec.workdir, environ)
    # A umask that takes from the owner, too, would make directories that nobody can enter.
    previous = os.umask(0o077)
    try:
        run_dir, chosen = _make_directory(_open_root(runs_root), spec.name, run_id)
        try:
            _fill(run_dir, chosen, spec, git=git, argv=argv, cwd=cwd, cell=cell)
        except OSError as error:
            files.remove_tree(run_dir)
            what = error.filename if isinstance(error.filename, str) else run_dir
            raise StorageError(f"{what}: {error.strerror}", hint="see df and the directory's permissions") from error
    finally:
        os.umask(previous)
        git.close()
    return run_dir, chosen


def refuse_secrets(spec: JobSpec) -> None:
    """Refuse a job that could only be recorded with a secret in it.

    Raises:
        UsageError: names the place, never the value.
    """
    places = list(redact_argv(spec.command)[1])
    places += [
        f"env {name}" for name, value in spec.env.items() if is_secret_name(name) or is_secret_value(value, name)
    ]
    if spec.notify.webhook is not None and is_secret_value(spec.notify.webhook):
        places.append("notify.webhook")
    places += [f"notify.command {place}" for place in redact_argv(spec.notify.command)[1]]
    if places:
        hint = "export it before `holdfast run` and let the program read it from its environment"
        raise UsageError(f"the job holds what looks like a secret: {', '.join(places)}; jobs are recorded", hint=hint)


def _open_root(path: str) -> str:
    path = os.path.abspath(path)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        facts = os.stat(path)
    except OSError as error:
        raise StorageError(f"runs directory {path}: {error.strerror}", hint="name another one with --runs") from error
    if facts.st_uid not in (os.geteuid(), 0) or (facts.st_mode & 0o022 and not facts.st_mode & 0o1000):
        seen = f"belongs to uid {facts.st_uid}, mode {facts.st_mode & 0o7777:04o}"
        raise NotPermitted(f"runs directory {path} {seen}: others could replace runs", hint="use one of your own")
    return path


def _make_directory(root: str, name: str, preset: str | None) -> tuple[str, str]:
    if preset is not None and not is_run_id(preset):
        raise UsageError(f"{preset!r} is not a run id", hint="write it like 20261120-104501-digits-3fa2")
    for _ in range(100):
        run_id = preset or build_run_id(_stamp(), name, os.urandom(2).hex())
        try:
            os.mkdir(f"{root}/{run_id}", 0o700)
        except FileExistsError as error:
            if preset is not None:
                raise UsageError(f"run {preset} exists already in {root}", hint="leave the id out") from error
            continue
        except OSError as error:
            raise StorageError(f"{root}/{run_id}: {error.strerror}", hint="see df and the permissions") from error
        return f"{root}/{run_id}", run_id
    raise StorageError(f"a hundred run ids in a row are taken in {root}", hint="choose another --runs")


def _stamp() -> str:
    now = utc_now()
    return f"{now[0:4]}{now[5:7]}{now[8:10]}-{now[11:13]}{now[14:16]}{now[17:19]}"


def _fill(
    run_dir: str,
    run_id: str,
    spec: JobSpec,
    *,
    git: GitReader,
    argv: Sequence[str],
    cwd: str,
    cell: CellRef | None = None,
) -> None:
    for name in (wire.SNAPSHOT, wire.ARTIFACTS, wire.CHECKPOINTS, wire.ATTEMPTS):
        os.mkdir(f"{run_dir}/{name}", 0o700)
    copies: list[FileCopy] = []
    if spec.config is not None:
        copies.append(copy_file("config", spec.config, run_dir, clean=redact_text)[0])
    pinned = _pin_entry(spec, run_dir, copies)
    lock = find_upwards(spec.workdir, LOCK_NAMES, stop=find_repository(spec.workdir))
    if lock is not None:
        copies.append(copy_file("lock", lock, run_dir, clean=redact_text)[0])
    job = replace(spec, command=_pinned_command(spec, pinned, run_dir))
    origin = RunOrigin(
        run_id=run_id,
        created_at=utc_now(),
        job=job,
        job_sha256=hash_job(spec),
        user=user_name(os.geteuid()),
        uid=os.geteuid(),
        host=os.uname().nodename,
        cwd=cwd,
        argv=redact_argv(argv)[0],
        python=sys.executable,
        version=__version__,
        snapshot=CodeSnapshot(tuple(copies), git.collect(run_dir, clean=redact_code), pinned, spec.seed),
        cell=cell,
    )
    files.commit(f"{run_dir}/{wire.RUN}", wire.to_bytes(origin))
    # Not synced: it can be written again from the rest at any time.
    files.append(f"{run_dir}/{wire.HANDBOOK}", render_handbook(run_dir, 1, job).encode("utf-8", "replace"))
    _make_attempt(run_dir, run_id, 1)


def hash_job(spec: JobSpec) -> str:
    """SHA-256 over the job's canonical JSON (sorted keys, no spaces), as hexadecimal digits."""
    return hash_encoded_job(wire.encode(spec))


def hash_encoded_job(job: dict[str, object]) -> str:
    """As `hash_job`, of the job's JSON value."""
    text = json.dumps(job, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _pin_entry(spec: JobSpec, run_dir: str, copies: list[FileCopy]) -> PinnedScript | None:
    """Copy the first file that the command names, and decide whether it runs from the copy."""
    shell = find_shell_script(spec.command)
    words = range(len(spec.command)) if shell is None else range(shell.index, shell.index + 1)
    for index in words:
        path = os.path.join(spec.workdir, spec.command[index])
        if (index == 0 and "/" not in spec.command[0]) or not os.path.isfile(path):
            continue
        if index == 0 and not _is_script(path):
            continue
        copy, data = copy_file("entry", path, run_dir, clean=redact_code)
        copies.append(copy)
        direct = index == 0 and data is not None and is_shell(split_shebang(_first_line(data)) or ())
        return _decide_pin(spec, copy, data) if shell is not None or direct else None
    return None


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _first_line(data: bytes) -> str:
    return data[:256].split(b"\n", 1)[0].decode("utf-8", "replace")


def _decide_pin(spec: JobSpec, copy: FileCopy, data: bytes | None) -> PinnedScript:
    if copy.copy is None or data is None:
        note = copy.note or "it cannot be copied"
    elif asks_for_itself(data.decode("utf-8", "replace")):
        note = "it uses its own path ($0 or BASH_SOURCE), which a copy would change"
    elif b"\r" in data[:256].split(b"\n", 1)[0]:
        note = "its first line ends in a carriage return"
    else:
        return PinnedScript(copy.source, copy.copy, spec.command)
    return PinnedScript(copy.source, None, spec.command, f"runs from its place, so do not edit it meanwhile: {note}")


def _pinned_command(spec: JobSpec, pinned: PinnedScript | None, run_dir: str) -> tuple[str, ...]:
    """The command with the copy in the script's place, its interpreter in front when the ``#!`` line named it."""
    if pinned is None or pinned.copy is None:
        return spec.command
    copy = f"{run_dir}/{pinned.copy}"
    shell = find_shell_script(spec.command)
    if shell is not None:
        return (*spec.command[: shell.index], copy, *spec.command[shell.index + 1 :])
    words = split_shebang(_first_line(files.read_bytes(copy)))
    assert words is not None, "only a script with an interpreter line is pinned"
    return (*words, copy, *spec.command[1:])


def next_attempt(run_dir: str, reason: str, *, placement: Placement | None = None) -> int:
    """Make the next attempt of a run, in state `created`, and answer its number; earlier ones stay (POST-10).

    `reason` is why (``restart``, ``retry``, ``requeue``); it stands in the state until a supervisor takes the attempt
    up. `placement` says where it may run, beyond what the job says.

    Raises:
        NoSuchRun: the directory holds no run.
        StorageError: it cannot be written.
    """
    try:
        origin = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        run_id = str(origin["run_id"])
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except (OSError, KeyError, wire.WireError) as error:
        raise NoSuchRun(f"{run_dir} does not hold a run: {error}", hint="see `holdfast ls`") from error
    highest = max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)
    for number in range(highest + 1, highest + MOST_ATTEMPTS):
        try:
            _make_attempt(run_dir, run_id, number, reason, placement)
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{run_dir} attempt {number}: {error.strerror}", hint="see df") from error
        return number
    raise StorageError(f"{run_dir} has too many attempts", hint="start a new run")


def _make_attempt(
    run_dir: str, run_id: str, number: int, reason: str = "start", placement: Placement | None = None
) -> None:
    """Make an attempt's directory exclusively, then its state; a directory without a state was never begun."""
    directory = wire.attempt_dir(run_dir, number)
    previous = os.umask(0o077)
    try:
        os.mkdir(directory, 0o700)
    finally:
        os.umask(previous)
    if placement is not None:
        files.commit(f"{directory}/{wire.PLACEMENT}", wire.to_bytes(placement))
    state = RunState(
        run_id=run_id,
        attempt=number,
        version=0,
        boot_id=boot_id(),
        created_at=utc_now(),
        supervisor=None,
        state=Created(),
    )
    # Nothing has been done yet, so nothing is lost with it in a power cut (docs/adr/0012); run.json is on the disk.
    files.commit(f"{directory}/{wire.STATE}", wire.to_bytes(state, reason=reason), durable=False)
