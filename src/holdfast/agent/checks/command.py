"""Checks of the command: it can run, is whole, and does nothing that no run should do (RAIL-02, RAIL-09, PRE-11)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from holdfast.agent.login_environment import READ_AT
from holdfast.agent.view.source_change import read_origin
from holdfast.core.job.redact import redact_argv
from holdfast.core.near import find_near
from holdfast.core.run.scripts import (
    asks_for_itself,
    find_copier,
    find_install,
    find_shell_script,
    find_sourced,
    is_shell,
    split_shebang,
)
from holdfast.host.formats.packages import find_command
from holdfast.host.process.processes import user_name
from holdfast.model.finding import Finding

from .context import CheckContext, failed, passed, unknown, warned

SCRIPT_BYTES = 1024**2
"""Larger files are data, not scripts: their content is not looked at."""
MOST_SOURCED = 50
OF_SHELLS = frozenset({"source", ".", "export", "unset", "alias", "ulimit", "umask", "eval", "set", "if", "for"})
"""Words that are no programs, and that people type before one."""
_VALUED_PYTHON_OPTIONS = ("-W", "-X", "--check-hash-based-pycs")


def check_workdir(situation: CheckContext) -> Iterator[Finding]:
    """The working directory exists and can be entered."""
    path = situation.spec.workdir
    if not os.path.isdir(path):
        seen = "is not a directory" if os.path.lexists(path) else "does not exist"
        yield failed("workdir", path, seen, "correct `workdir`, or make the directory")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield failed("workdir", path, "cannot be read and entered by this account", "chmod u+rx it or choose another")
    else:
        yield passed("workdir", path, "exists")


def check_command(situation: CheckContext) -> Iterator[Finding]:
    """The first word is a program that the kernel will execute."""
    spec = situation.spec
    if not spec.command or not spec.command[0]:
        yield failed("command", "command", "is empty", "name a program")
        return
    if spec.container.image is not None:
        # Which programs an image has only the image knows: the first program inside says so before the command runs.
        return
    name = spec.command[0]
    path = find_command(name, situation.job_environ, spec.workdir)
    if path is None:
        where = _describe_file(situation.in_workdir(name)) if "/" in name else _describe_path(situation)
        remedy = "correct the command, or activate the environment that has it"
        if "/" in name:
            from_here = "" if name.startswith("/") else ", which counts from --workdir DIR"
            remedy = f"correct the path{from_here}"
        if situation.run_dir and READ_AT not in situation.environ and read_origin(situation.run_dir).get("ordered_by"):
            # What is activated at the desk is not the environment of a job here.
            remedy = "correct the command, or give the jobs of this place what has it"
            remedy += ': `setup`, or env_from = "login" in places.toml'
        if name == "python" and find_command("python3", situation.job_environ, spec.workdir):
            remedy = f"there is a python3: write python3; or {remedy.removeprefix('correct the command, or ')}"
        if "/" not in name and os.path.isfile(situation.in_workdir(name)):
            remedy = f"a file of that name is here: write {_name_script(name)}"
        if shell := _explain_shell(name, spec.command):
            remedy = shell
        if len(spec.command) == 1 and any(letter.isspace() for letter in name):
            remedy = "no shell reads the command: leave out the quotes, or write: bash -c '...'"
        yield failed("command", name, where, remedy)
    elif not os.access(path, os.X_OK):
        mode = os.stat(path).st_mode & 0o7777
        yield failed(
            "command", path, f"is not executable (mode {mode:04o})", f"chmod +x {path}, or name its interpreter"
        )
    else:
        yield from _check_executable(situation, path)


def _explain_shell(name: str, command: Sequence[str]) -> str:
    """What to do about a word that only a shell understands; empty where it is none."""
    variable, equals, _ = name.partition("=")
    if equals and variable.isidentifier():
        return f"no shell reads the command: set the variable by --env {variable}=..., and leave it out here"
    if name == "cd":
        return f"no shell reads the command: --workdir {' '.join(command[1:2]) or 'DIR'}, or: bash -c '...'"
    return "no shell reads the command: write it as bash -c '...'" if name in OF_SHELLS else ""


def _name_script(name: str) -> str:
    """How a file of the working directory is run."""
    return {".py": "python ", ".sh": "bash "}.get(os.path.splitext(name)[1], "./") + name


def _describe_file(path: str) -> str:
    if os.path.isdir(path):
        return f"{path} is a directory"
    return f"{path} is not a regular file" if os.path.exists(path) else f"{path} does not exist"


def _describe_path(situation: CheckContext) -> str:
    searched = situation.job_environ.get("PATH")
    if searched is None:
        return "is not found: the environment has no PATH"
    read_at = situation.environ.get(READ_AT)
    whose = f" (a login shell's, read {read_at[:16]}Z; `holdfast place probe` reads it anew)" if read_at else ""
    return f"is in none of PATH={searched}{whose}"


def _check_executable(situation: CheckContext, path: str) -> Iterator[Finding]:
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError:
        # A program may be executable and not readable; the kernel does not need to show it to us.
        yield passed("command", path, "is executable (its content is not readable)")
        return
    if head.startswith(b"\x7fELF"):
        yield passed("command", path, "is an executable program")
        return
    if not head.startswith(b"#!"):
        seen = "is empty" if not head else "is neither a program nor a script with an interpreter line"
        yield failed(
            "command", path, seen, "begin it with a line such as #!/usr/bin/env python3, or name its interpreter"
        )
        return
    line = head.split(b"\n", 1)[0]
    if b"\r" in line:
        seen = "its first line ends in a carriage return, so the kernel looks for an interpreter of that name"
        yield failed("script.line_ends", path, seen, f"sed -i 's/\\r$//' {path}")
        return
    words = split_shebang(line.decode("utf-8", "replace"))
    if words and find_command(words[0], situation.job_environ, "/") is None:
        yield failed(
            "command", path, f"its interpreter {words[0]} does not exist", "correct its first line, or install it"
        )
    else:
        yield passed("command", path, f"is a script for {' '.join(words or ['env'])}")


def _propose_script(situation: CheckContext, path: str) -> str:
    """What to do about a script that is not there: a near name, or what is not sent to a place."""
    directory, name = os.path.split(path)
    with contextlib.suppress(OSError):
        near = find_near(name, os.listdir(directory))
        if near:
            return f"did you mean {near}? else correct the command or `workdir`"
    remedy = "correct the command or `workdir`"
    if situation.run_dir and path.startswith(os.path.join(situation.run_dir, "work", "")):
        remedy += "; what git ignores was not sent: a line !NAME in .holdfastignore sends it"
    return remedy


def _propose_reading(path: str) -> str:
    """What to do about a file that this account may not read."""
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return "see that its directories can be entered by this account"
    return f"chmod u+r {path}" if owner == os.geteuid() else f"it is {user_name(owner)}'s: ask for leave, or copy it"


def check_script(situation: CheckContext) -> Iterator[Finding]:
    """The script or program file that an interpreter is to read exists, and a shell script has Unix line ends."""
    found = _find_program(situation)
    if found is None:
        return
    path, by_shell = found
    try:
        with open(path, "rb") as file:
            data = file.read(SCRIPT_BYTES + 1)
    except FileNotFoundError:
        named = path in situation.spec.command
        where = "" if named else f": a relative path counts from the working directory {situation.spec.workdir}"
        yield failed("script", path, f"does not exist{where}", _propose_script(situation, path))
        return
    except IsADirectoryError:
        if not os.path.exists(f"{path}/__main__.py"):
            yield failed("script", path, "is a directory without a __main__.py", "name the program's file")
        return
    except OSError as error:
        yield failed("script", path, f"cannot be read: {error.strerror}", _propose_reading(path))
        return
    if by_shell and b"\r\n" in data[:SCRIPT_BYTES]:
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        seen = f"has Windows line ends (first in line {line}): a shell takes the carriage return for part of each word"
        yield failed("script.line_ends", path, seen, f"sed -i 's/\\r$//' {path}")
    elif by_shell and (ends := _find_sourced_line_ends(situation, data)) is not None:
        sourced, line = ends
        seen = f"is sourced by {path} and has Windows line ends (first in line {line})"
        yield failed("script.line_ends", sourced, seen, f"sed -i 's/\\r$//' {sourced}")
    elif by_shell and situation.run_dir is not None and _runs_from_its_place(situation, path, data):
        seen = "uses its own path ($0 or BASH_SOURCE), so it runs from its place and not from the run's copy"
        yield warned("script.live", path, seen, "do not edit it while it runs: a shell reads its script as it goes")
    else:
        yield passed("script", path, "is readable")


def _find_sourced_line_ends(situation: CheckContext, data: bytes) -> tuple[str, int] | None:
    """The first file that a shell script reads into itself, also through others, with Windows line ends, and the line.

    What is not there or cannot be read may be so on purpose (``[ -f x ] && . x``), so it is passed over.
    """
    seen: list[str] = []
    texts = [data]
    while texts and len(seen) < MOST_SOURCED:
        text = texts.pop().decode("utf-8", "replace")
        for name in find_sourced(text):
            path = os.path.normpath(situation.in_workdir(os.path.expanduser(name)))
            if path in seen or not os.path.isfile(path):
                continue
            seen.append(path)
            try:
                with open(path, "rb") as file:
                    found = file.read(SCRIPT_BYTES)
            except OSError:
                continue
            if b"\r\n" in found:
                return path, found[: found.index(b"\r\n")].count(b"\n") + 1
            texts.append(found)
    return None


def _runs_from_its_place(situation: CheckContext, path: str, data: bytes) -> bool:
    inside = path.startswith(f"{situation.run_dir}/")
    return not inside and asks_for_itself(data.decode("utf-8", "replace"))


def _find_program(situation: CheckContext) -> tuple[str, bool] | None:
    """The file that the interpreter will read, and whether the interpreter is a shell."""
    argv = situation.spec.command
    shell = find_shell_script(argv)
    if shell is not None:
        return situation.in_workdir(shell.name), True
    base = argv[0].rsplit("/", 1)[-1] if argv else ""
    if base.startswith("python"):
        name = _find_python_file(argv)
        return None if name is None else (situation.in_workdir(name), False)
    if situation.spec.container.image is not None:
        return None
    path = find_command(argv[0], situation.job_environ, situation.spec.workdir) if argv else None
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            line = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return None
    words = split_shebang(line.decode("utf-8", "replace"))
    return (path, True) if words and is_shell(words) else None


def _find_python_file(argv: tuple[str, ...]) -> str | None:
    """The program file in ``python [options] file``; None with -c, -m or from standard input. Source: python(1)."""
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "-" or (word.startswith("-") and not word.startswith("--") and set(word[1:]) & {"c", "m"}):
            return None
        if not word.startswith("-"):
            return word
        index += 2 if word in _VALUED_PYTHON_OPTIONS else 1
    return None


def check_installs(situation: CheckContext) -> Iterator[Finding]:
    """Nothing is installed or downloaded by the command itself, on every run (RAIL-09); copies can go on (GEN3)."""
    spec = situation.spec
    texts = {"command": " ".join(spec.command)}
    program = _find_program(situation)
    if program is not None and program[1]:
        try:
            with open(program[0], "rb") as file:
                texts[program[0]] = file.read(SCRIPT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            yield unknown("command.installs", program[0], f"not read: {error.strerror}", "make it readable")
            return
    yield from _judge_installs(texts, allowed=spec.allow_install)
    for where, text in texts.items():
        copier = find_copier(text)
        if copier is not None:
            seen = f"copies with `{copier}`, which begins anew when the line breaks"
            yield warned("command.copies", where, seen, "rsync --partial (wget -c) goes on where it was")
            return


def _judge_installs(texts: dict[str, str], *, allowed: bool) -> Iterator[Finding]:
    found = {where: name for where, text in texts.items() if (name := find_install(text)) is not None}
    if not found:
        yield passed("command.installs", "command", "installs nothing that we can see")
        return
    where, name = next(iter(found.items()))
    seen = f"runs `{name}`: each run would install again, wait for the network, and could change what the last one used"
    if allowed:
        yield warned("command.installs", where, f"{seen}; allowed by the job", "install once, before the run")
    else:
        yield failed("command.installs", where, seen, "install once before the run, or allow it: allow_install: true")


def check_secrets(situation: CheckContext) -> Iterator[Finding]:
    """No secret stands on the command line, which every user of the box can read."""
    places = redact_argv(situation.spec.command)[1]
    if places:
        seen = f"{', '.join(places)} looks like a secret; every account here can read command lines"
        yield failed(
            "command.secrets", "command", seen, "export it before `holdfast run` and read it from the environment"
        )
    else:
        yield passed("command.secrets", "command", "names nothing that looks like a secret")
