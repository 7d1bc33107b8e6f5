"""From a job file and options to a `JobSpec`: strict, with every mistake named at once and in its place.

Layers: what the command line says stands over the job file; where both are silent `JobSpec`'s default holds. A mapping
is layered key by key, a list is replaced as a whole. Relative paths count from the job file's directory when written
there, and from the current directory when given as an option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from holdfast.cli.errors import name_help
from holdfast.core.job.environment import OWN_VARIABLES
from holdfast.core.job.redact import holds_secret
from holdfast.core.job.secret_names import read_uses
from holdfast.core.near import find_near
from holdfast.core.slurm.options import lay_over
from holdfast.desk.orders.paths import OrderBase
from holdfast.model.errors import HoldfastError, JobFileError, StorageError, UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.ids import clean_name
from holdfast.model.job import GRACE_MAX_S, JobSpec
from holdfast.model.record import asdict, record, replace

from . import values
from .documents import Node, load_document
from .schema import BY_PATH, GROUPS, KEYS, Kind

MAX_PROBLEMS = 10
"""So many mistakes are listed; more are only counted."""

FEW_KEYS = 8
"""Up to so many keys are listed in an error."""

ELSEWHERE = {
    **dict.fromkeys(("count", "num_gpus", "gpu_count", "cards"), "gpus"),
    **dict.fromkeys(("cmd", "script", "run", "program"), "command"),
    **dict.fromkeys(("cwd", "dir", "directory", "chdir"), "workdir"),
    **dict.fromkeys(("time", "walltime", "deadline", "max_time"), "timeout"),
    **dict.fromkeys(("outputs", "output_files"), "artifacts"),
    "environment": "env",
    "mem": "limits.memory",
}
"""What other tools call a key, to ours; where a spelling is near to another key that one is proposed."""

DEADLINES = {"timeout": "timeouts.total_s", "timeouts.run": "timeouts.run_s", "gpu.max_hold": "gpu.max_hold_s"}
"""Keys that end a run, and the fields that hold them."""

INTERPRETERS = ("python", "bash", "sh", "dash", "zsh", "perl", "ruby", "Rscript", "julia", "node", "uv")
"""Commands whose script, not themselves, names the run."""


@record
class Problem:
    """One mistake: where (``job.yaml:12``, ``--timeout``), in which key, what is wrong.

    `line` is 0 for the command line.
    """

    where: str
    key: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        """As a compiler would say it; an option names its key already."""
        leaf = self.key.rpartition(".")[2].replace("_", "-")
        named = not self.key or (self.where.startswith("--") and self.where.endswith(f"-{leaf}"))
        return f"{self.where}: {self.message}" if named else f"{self.where}: {self.key}: {self.message}"


def read_job(
    path: str | None,
    options: Mapping[str, Node],
    *,
    command: Sequence[str] = (),
    cwd: str | None = None,
    under: Mapping[str, object] | None = None,
    elsewhere: bool = False,
    used: list[str] | None = None,
    base_of_options: values.Base | None = None,
) -> JobSpec:
    """The job that a file, options (by key path) and a command on the command line describe together.

    `under` are values by field of `JobSpec` that hold where all of these are silent; the keys of those that did are
    added to `used`. `elsewhere`: the job is going to another machine, and its paths stay as they are written
    (`desk.orders.paths`). `base_of_options`: from where relative paths of options count, if not from `cwd`.

    Raises:
        JobFileError: the file is wrong; all mistakes (up to ten) are in the message and in ``details``.
        UsageError: the mistakes are all on the command line.
    """
    here = cwd or find_cwd()
    problems: list[Problem] = []
    base = here
    stated: dict[str, Node] = {}
    if path is not None:
        tree = load_document(path)
        found = os.path.abspath(os.path.join(here, path))
        # `<(...)` and /dev/stdin stand in no directory of the job's.
        base = here if found.startswith(("/dev/", "/proc/")) else os.path.dirname(found)
        stated = flatten_keys(tree, path, problems)
        _refuse_foreign_setup(found, stated, problems)
    fields: dict[str, object] = dict(under or {})
    if used is not None:
        used += [key.path for key in KEYS if key.field in fields and key.path not in {**stated, **options}]
    _convert(stated, OrderBase(base) if elsewhere else base, fields, problems)
    _convert(options, base_of_options or (OrderBase(here) if elsewhere else here), fields, problems)
    _take_command(path, stated, command, fields, problems)
    fields.setdefault("workdir", OrderBase(base).read("") if elsewhere else base)
    check_together(path or "the command line", fields, problems)
    _check_no_cards(options, fields, problems)
    if problems:
        raise _summarise(problems, from_file=path is not None)
    return _assemble(fields)


def change_job(
    before: JobSpec,
    path: str | None,
    options: Mapping[str, Node],
    *,
    command: Sequence[str] = (),
    cwd: str | None = None,
    defaults: Mapping[str, object] | None = None,
    base: values.Base | None = None,
) -> JobSpec:
    """A recorded job with what a file and options say now; without a file, what they do not name stays.

    With one, the job is what the file says, and options over it; only a command that it leaves out stays. The name is
    that of `before`, unless an option says one. `cwd` is as of `read_job`, `base` as `base_of_options` there;
    `defaults` are values by field that hold under the file.

    Raises:
        JobFileError, UsageError: as `read_job`.
    """
    recorded = {key.field: _get_field(before, key.field) for key in KEYS}
    kept = {name: recorded[name] for name in ("name", "command")}
    under = recorded if path is None else {**(defaults or {}), **kept}
    found = read_job(path, options, command=command, under=under, cwd=cwd, base_of_options=base)
    return found if "name" in options else replace(found, name=before.name)


def _get_field(spec: JobSpec, field: str) -> object:
    group, _, leaf = field.rpartition(".")
    return getattr(getattr(spec, group) if group else spec, leaf)


def find_cwd() -> str:
    """The current directory.

    Raises:
        StorageError: it has been removed under us.
    """
    try:
        return os.getcwd()
    except OSError as error:
        message = f"the current directory cannot be found: {error.strerror}"
        raise StorageError(message, hint="it was probably removed; cd to one that exists") from error


def flatten_keys(tree: Node, path: str, problems: list[Problem]) -> dict[str, Node]:
    """Key path to node, for the keys that exist; the others are problems."""
    if tree.value is None or tree.value == {}:
        problems.append(Problem(path, "", "is empty; a job file needs at least `command: [...]`"))
        return {}
    if not isinstance(tree.value, dict):
        problems.append(
            Problem(tree.where, "", f"a job file is a mapping of keys, this is {values.describe_node(tree)}")
        )
        return {}
    found: dict[str, Node] = {}
    _note_duplicates(path, "", tree, problems)
    for name, node in tree.value.items():
        if name in BY_PATH:
            found[name] = node
        elif name in GROUPS:
            _flatten_group(path, name, node, found, problems)
        else:
            candidates = [key.path for key in GROUPS[""]] + [group for group in GROUPS if group]
            problems.append(Problem(node.where, name, _unknown_key(name, candidates), node.line))
    return found


def _flatten_group(path: str, group: str, node: Node, found: dict[str, Node], problems: list[Problem]) -> None:
    names = [key.path.removeprefix(f"{group}.") for key in GROUPS[group]]
    if node.value is None:
        return
    if not isinstance(node.value, dict):
        message = f"expected a mapping with {', '.join(names)}, found {values.describe_node(node)}"
        if group == "gpu" and isinstance(node.value, (int, str)):
            message += f"; did you mean gpus: {node.text or node.value}?"
        problems.append(Problem(node.where, group, message, node.line))
        return
    _note_duplicates(path, f"{group}.", node, problems)
    for name, inner in node.value.items():
        if name in names:
            found[f"{group}.{name}"] = inner
        else:
            problems.append(Problem(inner.where, f"{group}.{name}", _unknown_key(name, names), inner.line))


def _refuse_foreign_setup(path: str, stated: Mapping[str, Node], problems: list[Problem]) -> None:
    """Lines of sh are taken from files alone that nobody but this account (or root) writes."""
    if "setup" not in stated:
        return
    try:
        seen = os.stat(path)
    except OSError:
        return  # a pipe of the shell that typed the command
    if seen.st_uid in (0, os.geteuid()) and not (seen.st_mode & 0o002 and os.path.isfile(path)):
        return
    node = stated["setup"]
    whose = "can be written by everybody" if seen.st_mode & 0o002 else f"is the file of account {seen.st_uid}"
    message = f"is taken from a file of your own alone, and {path} {whose}; copy it, or chmod o-w it"
    problems.append(Problem(node.where, "setup", message, node.line))


def _note_duplicates(path: str, prefix: str, node: Node, problems: list[Problem]) -> None:
    for name, line in node.duplicates:
        first = node.value[name].line if isinstance(node.value, dict) else 0
        problems.append(Problem(f"{path}:{line}", prefix + name, f"written twice; the first is in line {first}", line))


def _unknown_key(name: str, candidates: Sequence[str]) -> str:
    """Words for a key that does not exist, with the nearest one that does, in this mapping or another."""
    near = find_near(name, candidates)
    if near:
        return f"unknown key; did you mean {near}?"
    if name in ELSEWHERE:
        return f"unknown key here; did you mean {ELSEWHERE[name]}?"
    elsewhere = [
        key.path for key in KEYS if key.path.rpartition(".")[2] == name or key.option == name.replace("_", "-")
    ]
    if elsewhere:
        return f"unknown key here; did you mean {' or '.join(elsewhere)}?"
    known = f"there are {', '.join(candidates)}" if len(candidates) <= FEW_KEYS else "`holdfast schema` lists the keys"
    return f"unknown key; {known}"


def _convert(stated: Mapping[str, Node], base: values.Base, fields: dict[str, object], problems: list[Problem]) -> None:
    """One layer over what `fields` has: a layer below is checked too, even where it is overruled."""
    for path, node in stated.items():
        key = BY_PATH[path]
        if key.kind is Kind.ENV:
            _convert_env(node, fields, problems)
            continue
        try:
            value = values.convert_value(key, node, base)
        except values.WrongValueError as error:
            problems.append(Problem(error.where or node.where, path, str(error), node.line))
            continue
        if isinstance(value, dict):
            # Option by option, as variables are.
            below = fields.get(key.field)
            fields[key.field] = lay_over(below, value) if isinstance(below, dict) else value
        elif value is not values.UNSTATED:
            fields[key.field] = value
        else:
            fields.pop(key.field, None)


def _convert_env(node: Node, fields: dict[str, object], problems: list[Problem]) -> None:
    """Variables one by one: a layer adds to the one below it."""
    if node.value is None:
        return
    if not isinstance(node.value, dict):
        message = f"expected a mapping NAME: value, found {values.describe_node(node)}"
        problems.append(Problem(node.where, "env", message, node.line))
        return
    known = fields.get("env", {})
    env: dict[str, str] = dict(known) if isinstance(known, dict) else {}
    for name, line in node.duplicates:
        problems.append(Problem(f"{node.where.rpartition(':')[0]}:{line}", f"env.{name}", "written twice", line))
    for name, inner in node.value.items():
        try:
            text = values.read_variable(name, inner)
        except values.WrongValueError as error:
            problems.append(Problem(inner.where, f"env.{name}", str(error), inner.line))
            continue
        if name in OWN_VARIABLES:
            message = f"is holdfast's own: each attempt is given it anew{OWN_VARIABLES[name]}"
            problems.append(Problem(inner.where, f"env.{name}", message, inner.line))
            continue
        if holds_secret(name, text):
            message = (
                f"looks like a secret, which would be stored; leave it out and `holdfast secret push PLACE {name}` "
                f"once (`local` is this machine), and name it in `secrets`; or, for a run here, `export {name}=...`"
            )
            problems.append(Problem(inner.where, f"env.{name}", message, inner.line))
            continue
        env[name] = text
    fields["env"] = env


def _take_command(
    path: str | None,
    stated: Mapping[str, Node],
    command: Sequence[str],
    fields: dict[str, object],
    problems: list[Problem],
) -> None:
    """Exactly one source of the command."""
    if command and "command" in stated:
        message = f"{stated['command'].where} has a command, and there is another one behind `--`; leave one out"
        problems.append(Problem("the command line", "", message))
    elif command:
        fields["command"] = tuple(command)
    elif "command" not in stated and "command" not in fields and not problems:
        where = path or "the command line"
        problems.append(Problem(where, "command" if path else "", "no command; say what to run"))


def check_together(where: str, fields: dict[str, object], problems: list[Problem]) -> None:
    """What no key can say alone."""
    env, uses = fields.get("env"), fields.get("secrets")
    if isinstance(env, dict) and isinstance(uses, tuple):
        both = [use.name for use in read_uses(uses) if use.name in env]
        problems += [Problem(where, f"env.{name}", "stands in `secrets`, too; leave one out") for name in both]
    memory, high = fields.get("limits.memory_bytes"), fields.get("limits.memory_high_bytes")
    if isinstance(memory, int) and isinstance(high, int) and high > memory:
        problems.append(Problem(where, "limits.memory_high", "is above limits.memory, so it would never act"))
    if fields.get("limits.swap_bytes") is not None and memory is None:
        problems.append(Problem(where, "limits.swap", "stands beside limits.memory, which is not stated"))
    run, total = fields.get("timeouts.run_s"), fields.get("timeouts.total_s")
    if isinstance(run, float) and isinstance(total, float) and run > total:
        problems.append(Problem(where, "timeouts.run", "is longer than timeout, the deadline of the whole attempt"))
    for key, name in DEADLINES.items():
        if fields.get(name) == 0:
            problems.append(Problem(where, key, "is 0, so its time would be up before it began; none is no limit"))
    grace, most = fields.get("grace_s"), fields.get("grace_max_s", GRACE_MAX_S)
    if isinstance(grace, float) and isinstance(most, float) and grace > most:
        problems.append(Problem(where, "grace", f"is longer than grace_max ({most:g} s)"))


def _check_no_cards(options: Mapping[str, object], fields: dict[str, object], problems: list[Problem]) -> None:
    """Options that say how cards are used, where none is asked for; a job file may keep them for another time."""
    asked = fields.get("gpus", GpuRequest())
    said = [
        f"--{key.option}"
        for key in KEYS
        if key.path in options and key.path in ("gpu.share", "gpu.memory") and fields.get(key.field)
    ]
    if said and isinstance(asked, GpuRequest) and not asked.wanted:
        what = "--gpus 0 is a count, no card" if "gpus" in options else "no card is asked for (--gpus)"
        words = f"is about cards, and {what}; one card: --gpus 1, card 0: --gpus 0,"
        problems += [Problem(option, "", words) for option in said]


def _summarise(problems: list[Problem], *, from_file: bool) -> HoldfastError:
    problems = sorted(problems, key=lambda problem: problem.line)
    shown = [str(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        shown.append(f"and {len(problems) - MAX_PROBLEMS} more")
    details: dict[str, object] = {"problems": [asdict(problem) for problem in problems]}
    on_line = all(problem.where.startswith(("--", "the command line")) for problem in problems)
    text = "\n".join(shown)
    if on_line or not from_file:
        context = click.get_current_context(silent=True)
        page = name_help(context, [problem.where for problem in problems])
        return UsageError(text, hint=f"`{page}` lists the options", details=details)
    return JobFileError(text, hint="nothing was started; `holdfast schema` has every key", details=details)


def _assemble(fields: dict[str, object]) -> JobSpec:
    """The nested records from dotted field names."""
    flat: dict[str, object] = {}
    nested: dict[str, dict[str, object]] = {}
    for name, value in fields.items():
        group, _, leaf = name.rpartition(".")
        if group:
            nested.setdefault(group, {})[leaf] = value
        else:
            flat[name] = value
    command = flat["command"]
    assert isinstance(command, tuple)
    flat.setdefault("name", name_from_command(command))
    spec = JobSpec(**flat)  # type: ignore[arg-type]  # each value was converted for its own field
    groups = {group: replace(getattr(spec, group), **leaves) for group, leaves in nested.items()}
    return replace(spec, **groups)


def name_from_command(command: Sequence[str]) -> str:
    """A name for people: ``train`` for ``python3 -u train.py``, the module for ``-m``, else the program's own."""
    program = os.path.basename(command[0])
    if not program.rstrip("0123456789.").startswith(INTERPRETERS):
        return clean_name(program)
    rest = list(command[1:])
    for index, word in enumerate(rest):
        if word == "-m" and index + 1 < len(rest):
            return clean_name(rest[index + 1])
        if word in {"-c", "-e"}:
            break
        if not word.startswith("-"):
            stem, ending = os.path.splitext(os.path.basename(word))
            if ending in {".py", ".sh", ".bash", ".pl", ".rb", ".R", ".jl", ".js"}:
                return clean_name(stem)
    return clean_name(program)
