"""Finds jobs that would write to one place (QUEUE-03).

Every run has a directory of its own, so what a job writes there cannot meet another's. What can: a path in its
arguments (``--output-dir /data/out``), in its environment (``OUTPUT_DIR``), or an absolute artifact. Two jobs with one
such path overwrite each other without a word, so they are refused before either starts. Which arguments name a place
that is written to is judged by their names; one that is only read (``--data-dir``, ``--ckpt-path``) is not among them.

Pure: resolved jobs (``wire.encode(JobSpec)``) come in as mappings, paths are compared as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.core.run.scripts import SHELLS
from holdfast.model.pattern import compile_later

JOB_PLACEHOLDER = "{job}"
"""What a command writes for its job's own name."""
ADVICE = f"give each a place of its own with {JOB_PLACEHOLDER} in the path"

_PLACE = r"(?:dir(?:ectory)?|path|folder|file|root|to)"
_OUTPUT_NAME = compile_later(
    rf"""(?:out(?:put)?s?(?:[-_]?{_PLACE})? | (?:save|results?|logs?|logging|tensorboard|tb|dump)[-_]?{_PLACE}
      | (?:run|work|save|exp|experiment|model)[-_]?(?:out(?:put)?[-_]?)?dir(?:ectory)? | logdir | savedir
      | (?:checkpoints?|ckpts?)[-_]?(?:dir(?:ectory)?|folder|root|out(?:put)?)
      | default[-_]root[-_]dir | hydra\.run\.dir | hydra\.sweep\.dir)""",
    re.VERBOSE | re.IGNORECASE,
)
"""Names that commands and libraries give to places they write to (argparse, hydra, Lightning, mmdetection)."""
_INPUT_NAMES = frozenset({"model_dir", "model-dir", "modeldir"})
"""Where a model is read from at least as often as written to."""
_WORD = compile_later(r"(?:--?)?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)=(?P<value>.*)", re.DOTALL)
_NOWHERE = frozenset({"", "-", "/dev/null", "/dev/stdout", "/dev/stderr", "none", "None", "null", "true", "false"})
_REMOTE = compile_later(r"[A-Za-z][A-Za-z0-9+.-]*://")
_VARIABLE = compile_later(
    r"(?:\w+_)?(?:OUT(?:PUT)?S?|SAVE|LOGS?|RESULTS?|CHECKPOINTS?|CKPTS?)_?(?:DIR|DIRECTORY|FOLDER|PATH)"
)
_NAMED_JOBS = 3


def find_collisions(
    jobs: Sequence[Mapping[str, object]], names: Sequence[str] = (), *, shared: Iterable[str] = ()
) -> list[str]:
    """One sentence for each place that two or more jobs would write to, or into which one would write inside another's.

    `names` are the jobs' names in the same order (without them the jobs' own are used), `shared` absolute paths for
    which the user has said that the jobs keep apart there by themselves.
    """
    allowed = {posixpath.normpath(path) for path in shared}
    writers: dict[str, dict[int, str]] = {}
    for number, job in enumerate(jobs):
        for path, how in find_outputs(job):
            if path not in allowed:
                writers.setdefault(path, {}).setdefault(number, how)
    labels = names or [str(job.get("name", number + 1)) for number, job in enumerate(jobs)]
    problems = [_describe_same(path, users, labels) for path, users in writers.items() if len(users) > 1]
    return problems + list(_find_nested(writers, labels))


def find_outputs(job: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The places that a job says it writes to, outside of its run directory: (path, where it says so)."""
    workdir = str(job.get("workdir") or "/")
    command = job.get("command")
    if isinstance(command, (list, tuple)):
        for value, how in _read_arguments([str(word) for word in command]):
            if value not in _NOWHERE:
                yield _locate(value, workdir), how
    environment = job.get("env")
    for name, text in environment.items() if isinstance(environment, dict) else ():
        if _VARIABLE.fullmatch(name) and text not in _NOWHERE:
            yield _locate(str(text), workdir), name
    artifacts = job.get("artifacts")
    for artifact in artifacts if isinstance(artifacts, (list, tuple)) else ():
        if posixpath.isabs(str(artifact)):
            yield posixpath.normpath(str(artifact)), "artifacts"


def _read_arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(value, option) of the arguments that name an output."""
    # ``bash -o pipefail`` is no output; what a shell is given as text cannot be read here.
    in_shell = bool(command) and command[0].rsplit("/", 1)[-1] in SHELLS
    for index, word in enumerate(command[1:], start=1):
        if not word:
            continue
        following = command[index + 1] if index + 1 < len(command) else None
        if word == "-o":
            if following is not None and not in_shell and "=" not in following:
                yield following, word
        elif "=" in word:
            found = _WORD.fullmatch(word)
            if found is not None and _is_output(found["name"]):
                yield found["value"], word[: found.start("value") - 1]
        elif word.startswith("--") and following is not None and not following.startswith("-") and _is_output(word[2:]):
            yield following, word


def _is_output(name: str) -> bool:
    # Of a dotted name (``trainer.output_dir``) the last part says what it is.
    last = name.rpartition(".")[2]
    if last.lower() in _INPUT_NAMES:
        return False
    return _OUTPUT_NAME.fullmatch(last) is not None or _OUTPUT_NAME.fullmatch(name) is not None


def _locate(value: str, workdir: str) -> str:
    if _REMOTE.match(value):
        return value.rstrip("/")
    return posixpath.normpath(posixpath.join(workdir, value))


def _describe_same(path: str, users: Mapping[int, str], labels: Sequence[str]) -> str:
    named = [labels[number] for number in users]
    shown = " and ".join(named) if len(named) == 2 else ", ".join(named[:_NAMED_JOBS])
    if len(named) > _NAMED_JOBS:
        shown += f" and {len(named) - _NAMED_JOBS} more"
    how = next(iter(users.values()))
    return f"{shown} would all write to {path} ({how}); {ADVICE}"


def _find_nested(writers: Mapping[str, Mapping[int, str]], labels: Sequence[str]) -> Iterator[str]:
    """A place inside another job's place; of several jobs with one place the first stands for all."""
    around: list[str] = []
    for path in sorted(writers, key=lambda path: path.rstrip("/") + "/"):
        while around and not path.startswith(around[-1].rstrip("/") + "/"):
            around.pop()
        for outer in around:
            inside, outside = next(iter(writers[path])), next(iter(writers[outer]))
            if inside != outside:
                how = writers[path][inside]
                yield f"{labels[inside]} would write to {path} ({how}), inside {outer} of {labels[outside]}; {ADVICE}"
                break
        around.append(path)
