"""What is installed for the interpreter that a command will use, read from its directories without running it.

Importing torch takes seconds and may touch a GPU, and running an interpreter costs more than the whole preflight; the
version stands in the name of a directory (``torch-2.5.1+cu121.dist-info``; Source: PyPA, "Recording installed
projects"). So: find the interpreter that the command begins with, go to its library directories, look at the names.

What cannot be told that way (a wrapper, a container, ``bash -c``) is "not known", never "not installed".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

MOST_ENTRIES = 20_000
"""A library directory with more entries than this is not read to its end."""
_PYTHON = compile_later(r"python(\d+(\.\d+)?)?")


@record
class Interpreter:
    """A Python that a command will run under: `path` as found on PATH, `directories` where its packages lie."""

    path: str
    directories: tuple[str, ...]


@record
class PackageVersion:
    """What was found of one package: `version` is None when it is not known, `evidence` says where or why not."""

    version: str | None
    evidence: str


def find_command(name: str, environ: Mapping[str, str], workdir: str) -> str | None:
    """The file that exec would run for a command's first word, by the job's PATH; None when there is none.

    A word with a slash counts from `workdir`, as do relative entries of PATH. Source: execvp(3); default PATH as in
    confstr(_CS_PATH).
    """
    if "/" in name:
        path = os.path.join(workdir, name)
        return path if os.path.isfile(path) else None
    for entry in environ.get("PATH", "/bin:/usr/bin").split(":"):
        path = os.path.join(workdir, entry or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def read_shebang(path: str) -> list[str] | None:
    """Interpreter and its one argument from a script's first line; None when it has no ``#!`` or cannot be read.

    Source: execve(2), "Interpreter scripts". A trailing carriage return is kept: it belongs to the name then.
    """
    try:
        with open(path, "rb") as file:
            line = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    return [os.fsdecode(word) for word in line[2:].strip(b" \t").split(None if b"\r" not in line else b" ", 1)]


def find_interpreter(command: Sequence[str], environ: Mapping[str, str], workdir: str) -> Interpreter | None:
    """The Python that runs this command, also behind a script with a ``#!`` line (torchrun); None if not known."""
    if not command:
        return None
    path = find_command(command[0], environ, workdir)
    for _ in range(2):
        if path is None:
            return None
        if _PYTHON.fullmatch(os.path.basename(path)) and read_shebang(path) is None:
            return Interpreter(path, _find_directories(path, environ))
        words = read_shebang(path)
        if not words:
            return None
        name = words[1].split()[-1] if os.path.basename(words[0]) == "env" and len(words) > 1 else words[0]
        path = find_command(name, environ, workdir)
    return None


def _find_directories(python: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Library directories in the order of the interpreter's search path, as far as the layout tells."""
    found = [entry for entry in environ.get("PYTHONPATH", "").split(":") if entry.startswith("/")]
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    settings = _read_venv(f"{prefix}/pyvenv.cfg")
    if settings is None:
        base = os.path.dirname(os.path.dirname(os.path.realpath(python)))
        return (*found, *_list_user(environ), *_list_libraries(base))
    found += _list_libraries(prefix)
    if settings.get("include-system-site-packages", "").lower() == "true" and "home" in settings:
        found += [*_list_user(environ), *_list_libraries(os.path.dirname(settings["home"]))]
    return tuple(found)


def _read_venv(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file.read(65536).splitlines()]
    except OSError:
        return None
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def _list_libraries(prefix: str) -> list[str]:
    places = [prefix] if prefix != "/usr" else ["/usr/local", "/usr"]
    found = []
    for place in places:
        for library in (f"{place}/lib", f"{place}/lib64"):
            names = _list_names(library, "python3")
            found += [f"{library}/{name}/{leaf}" for name in names for leaf in ("site-packages", "dist-packages")]
    return [path for path in dict.fromkeys(found) if os.path.isdir(path)]


def _list_user(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("PYTHONUSERBASE") or (f"{environ['HOME']}/.local" if environ.get("HOME") else "")
    if not home or environ.get("PYTHONNOUSERSITE"):
        return []
    return [f"{home}/lib/{name}/site-packages" for name in _list_names(f"{home}/lib", "python3")]


def _list_names(directory: str, prefix: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in islice(entries, MOST_ENTRIES) if entry.name.startswith(prefix)]
    except OSError:
        return []


def find_package(interpreter: Interpreter, name: str) -> PackageVersion:
    """The version of an installed package, `name` in its normalised form (``torch``, ``scikit_learn``)."""
    for directory in interpreter.directories:
        for entry in _list_names(directory, f"{name}-"):
            match = re.fullmatch(re.escape(name) + r"-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", entry)
            if match:
                return PackageVersion(match[1], f"{directory}/{entry}")
    places = ", ".join(interpreter.directories) or "no library directory"
    return PackageVersion(None, f"no {name} for {interpreter.path} in {places}")


def find_torch(command: Sequence[str], environ: Mapping[str, str], workdir: str) -> PackageVersion:
    """The torch that a command will import, as far as that can be told from outside (RAIL-03, RAIL-04)."""
    interpreter = find_interpreter(command, environ, workdir)
    if interpreter is None:
        return PackageVersion(
            None, f"which Python {command[0] if command else 'nothing'} runs cannot be told from outside"
        )
    return find_package(interpreter, "torch")
