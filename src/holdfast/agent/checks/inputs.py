"""What the job will read: inputs, configuration, data, image, and whether it is pinned (PRE-02, PRE-04, PRE-17)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...host.snapshot import LOCK_NAMES, find_repository, find_upwards
from .situation import failed, passed, unknown, warned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...model.finding import Finding
    from .situation import Situation

LARGEST_CONFIG_BYTES = 8 * 1024**2
IMAGE_ANSWER_S = 1.8
"""A missing image is to be reported within 2 s (PRE-04)."""
IMAGE_FILES = (".sif", ".img", ".sqsh", ".squashfs", ".simg")


def check_inputs(situation: Situation) -> Iterator[Finding]:
    """Declared inputs exist and can be read."""
    for path in situation.spec.inputs:
        yield _check_readable("inputs", situation.in_workdir(path), "correct `inputs`, or put the file there")


def check_data(situation: Situation) -> Iterator[Finding]:
    """Declared data exists, can be read, and is not an empty directory."""
    for path in situation.spec.data:
        finding = _check_readable("data", path, "correct `data`, or mount it")
        if finding.level.value == "pass" and os.path.isdir(path) and not _has_entries(path):
            finding = warned("data", path, "is an empty directory", "see whether its file system is mounted")
        yield finding


def _check_readable(check: str, path: str, remedy: str) -> Finding:
    try:
        if os.path.isdir(path):
            with os.scandir(path):
                pass
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except FileNotFoundError:
        return failed(check, path, "does not exist", remedy)
    except OSError as error:
        return failed(check, path, f"cannot be read: {error.strerror}", "have its permissions changed")
    return passed(check, path, "is readable")


def _has_entries(path: str) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is not None


def check_config(situation: Situation) -> Iterator[Finding]:
    """The configuration can be read and parses, as far as the standard library can tell (PRE-02)."""
    path = situation.spec.config
    if path is None:
        return
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_CONFIG_BYTES + 1)
    except OSError as error:
        yield failed("config", path, f"cannot be read: {error.strerror}", "correct `config`, or put the file there")
        return
    if len(data) > LARGEST_CONFIG_BYTES:
        yield warned("config", path, "is larger than 8 MiB and was not parsed", "see whether it is the right file")
        return
    problem = find_syntax_problem(path, data)
    if problem is not None:
        yield failed("config", path, problem, "correct that line")
    elif path.endswith((".yaml", ".yml")):
        yield passed("config", path, "is readable text (YAML is parsed by the command line, before the run is created)")
    else:
        yield passed("config", path, "is readable and parses")


def find_syntax_problem(path: str, data: bytes) -> str | None:
    """What is wrong with a configuration file, with its line; None when nothing is, or its format is not known."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"line {data[: error.start].count(10) + 1}: not UTF-8 text"
    if path.endswith(".json"):
        import json

        try:
            json.loads(text)
        except ValueError as error:
            return f"line {getattr(error, 'lineno', 1)}: {getattr(error, 'msg', error)}"
        except RecursionError:
            return "is nested too deeply"
    elif path.endswith(".toml"):
        return _find_toml_problem(text)
    elif path.endswith((".yaml", ".yml")):
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("\t") or line.lstrip(" ").startswith("\t"):
                return f"line {number}: a tab in the indentation, which YAML forbids"
            if "\0" in line:
                return f"line {number}: a NUL character"
    return None


def _find_toml_problem(text: str) -> str | None:
    import importlib

    try:
        reader = importlib.import_module("tomllib")
    except ImportError:  # Python 3.10 has none: the command line has parsed it
        return None
    try:
        reader.loads(text)
    except ValueError as error:
        return str(error)
    return None


def check_image(situation: Situation) -> Iterator[Finding]:
    """The container image exists on this box, and is named so that it stays the same one (PRE-04, PRE-17)."""
    image = situation.spec.image
    if image is None:
        return
    local = situation.in_workdir(image)
    if os.path.exists(local) or image.startswith(("/", "./", "../")) or image.endswith(IMAGE_FILES):
        yield _check_readable("image", local, "correct `image`, or build or pull it first")
        return
    if "@sha256:" not in image:
        tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else "latest (implied)"
        seen = f"is named by the tag {tag}, which can mean another image tomorrow"
        yield warned("image.pinned", image, seen, "name it by digest: NAME@sha256:...")
    else:
        yield passed("image.pinned", image, "is named by digest")
    yield _ask_for_image(situation, image)


def _ask_for_image(situation: Situation, image: str) -> Finding:
    from ...host.children import BoundedChild, read_children
    from ...host.packages import find_command

    tools = (("podman", ("image", "exists", image)), ("docker", ("image", "inspect", "--format", "{{.Id}}", image)))
    asked = []
    for tool, arguments in tools:
        path = find_command(tool, situation.environ, "/")
        if path is None:
            continue
        child = BoundedChild((path, *arguments), situation.environ, 65536)
        read_children([child], IMAGE_ANSWER_S / len(tools))
        if child.code == 0:
            return passed("image", image, f"{tool} has it")
        asked.append(child.describe(tool))
    if not asked:
        return failed("image", image, "no podman or docker here to run it", "install one, or leave `image` out")
    return failed("image", image, f"not on this box ({'; '.join(asked)})", "pull or build it before the run")


def check_pins(situation: Situation) -> Iterator[Finding]:
    """What is installed is written down somewhere: a lock file, or pins with exact versions (PRE-17)."""
    workdir = situation.spec.workdir
    path = find_upwards(workdir, LOCK_NAMES, stop=find_repository(workdir))
    if path is None:
        return
    name = os.path.basename(path)
    if name not in ("requirements.txt", "environment.yml", "environment.yaml"):
        yield passed("pins", path, "is a lock file; it is copied into the run")
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            floating = list_floating(file.read(LARGEST_CONFIG_BYTES).splitlines())
    except OSError as error:
        yield unknown("pins", path, f"cannot be read: {error.strerror}", "make it readable")
        return
    if floating:
        named = ", ".join(floating[:3]) + (f" and {len(floating) - 3} more" if len(floating) > 3 else "")
        seen = f"names packages without an exact version ({named}) and there is no lock file"
        yield warned("pins", path, seen, "lock them: uv lock, or pip freeze > requirements.txt")
    else:
        yield passed("pins", path, "names exact versions; it is copied into the run")


def list_floating(lines: list[str]) -> list[str]:
    """The requirements among these lines that do not name one exact version, by package name."""
    found = []
    for line in lines:
        text = line.partition(" #")[0].strip().lstrip("- ")
        name = text.partition("[")[0]
        if not text or text.startswith(("#", "-", "http", "git+", ".", "/")) or ":" in text or "@" in text:
            continue
        if (
            "==" not in text
            and "===" not in text
            and "=" not in text.replace(">=", "").replace("<=", "").replace("~=", "")
        ):
            found.append("".join(letter for letter in name if letter.isalnum() or letter in "-_.").strip() or text)
    return found
