"""The command: that it can run, is whole, and does nothing that no run should do (RAIL-02, RAIL-09, PRE-11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...core.redact import redact_argv
from ...core.scripts import asks_for_itself, find_copier, find_install, find_shell_script, is_shell, split_shebang
from ...host.packages import find_command
from .situation import failed, passed, unknown, warned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...model.finding import Finding
    from .situation import Situation

SCRIPT_BYTES = 1024**2
"""Larger files are data, not scripts: their content is not looked at."""
_VALUED_PYTHON_OPTIONS = ("-W", "-X", "--check-hash-based-pycs")


def check_workdir(situation: Situation) -> Iterator[Finding]:
    """The working directory exists and can be entered."""
    path = situation.spec.workdir
    if not os.path.isdir(path):
        seen = "is not a directory" if os.path.lexists(path) else "does not exist"
        yield failed("workdir", path, seen, "correct `workdir`, or make the directory")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield failed("workdir", path, "cannot be read and entered by this account", "chmod u+rx it or choose another")
    else:
        yield passed("workdir", path, "exists")


def check_command(situation: Situation) -> Iterator[Finding]:
    """The first word is a program that the kernel will execute."""
    spec = situation.spec
    if not spec.command or not spec.command[0]:
        yield failed("command", "command", "is empty", "name a program")
        return
    name = spec.command[0]
    path = find_command(name, situation.job_environ, spec.workdir)
    if path is None:
        where = _describe_file(situation.in_workdir(name)) if "/" in name else _describe_path(situation)
        remedy = "correct the command, or activate the environment that has it"
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


def _describe_file(path: str) -> str:
    if os.path.isdir(path):
        return f"{path} is a directory"
    return f"{path} is not a regular file" if os.path.exists(path) else f"{path} does not exist"


def _describe_path(situation: Situation) -> str:
    searched = situation.job_environ.get("PATH")
    return f"is in none of PATH={searched}" if searched is not None else "is not found: the environment has no PATH"


def _check_executable(situation: Situation, path: str) -> Iterator[Finding]:
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


def check_script(situation: Situation) -> Iterator[Finding]:
    """The script or program file that an interpreter is to read exists, and a shell script has Unix line ends."""
    found = _find_program(situation)
    if found is None:
        return
    path, by_shell = found
    try:
        with open(path, "rb") as file:
            data = file.read(SCRIPT_BYTES + 1)
    except FileNotFoundError:
        yield failed("script", path, "does not exist", "correct the command or `workdir`")
        return
    except IsADirectoryError:
        if not os.path.exists(f"{path}/__main__.py"):
            yield failed("script", path, "is a directory without a __main__.py", "name the program's file")
        return
    except OSError as error:
        yield failed("script", path, f"cannot be read: {error.strerror}", "chmod u+r it")
        return
    if by_shell and b"\r\n" in data[:SCRIPT_BYTES]:
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        seen = f"has Windows line ends (first in line {line}): a shell takes the carriage return for part of each word"
        yield failed("script.line_ends", path, seen, f"sed -i 's/\\r$//' {path}")
    elif by_shell and situation.run_dir is not None and _runs_from_its_place(situation, path, data):
        seen = "uses its own path ($0 or BASH_SOURCE), so it runs from its place and not from the run's copy"
        yield warned("script.live", path, seen, "do not edit it while it runs: a shell reads its script as it goes")
    else:
        yield passed("script", path, "is readable")


def _runs_from_its_place(situation: Situation, path: str, data: bytes) -> bool:
    inside = path.startswith(f"{situation.run_dir}/")
    return not inside and asks_for_itself(data.decode("utf-8", "replace"))


def _find_program(situation: Situation) -> tuple[str, bool] | None:
    """The file that the interpreter will read, and whether the interpreter is a shell."""
    argv = situation.spec.command
    shell = find_shell_script(argv)
    if shell is not None:
        return situation.in_workdir(shell.name), True
    base = argv[0].rsplit("/", 1)[-1] if argv else ""
    if base.startswith("python"):
        name = _find_python_file(argv)
        return None if name is None else (situation.in_workdir(name), False)
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


def check_installs(situation: Situation) -> Iterator[Finding]:
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


def check_secrets(situation: Situation) -> Iterator[Finding]:
    """No secret stands on the command line, which every user of the box can read."""
    places = redact_argv(situation.spec.command)[1]
    if places:
        seen = f"{', '.join(places)} looks like a secret; every account here can read command lines"
        yield failed(
            "command.secrets", "command", seen, "export it before `holdfast run` and read it from the environment"
        )
    else:
        yield passed("command.secrets", "command", "names nothing that looks like a secret")
