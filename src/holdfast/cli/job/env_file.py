"""``--env-file``: variables for a job, one ``NAME=VALUE`` a line.

Empty lines and lines that begin with ``#`` say nothing; ``export`` may stand in front. A value goes to the end of its
line, as it is written: no variable in it is replaced. Quotes around all of it are taken off, as most readers of such
files do. A name without a value is a mistake: nothing is taken from the environment unsaid.
"""

from __future__ import annotations

import click

from holdfast.cli.path_type import PATH
from holdfast.desk.places.regular_file import read_regular
from holdfast.model.errors import UsageError

from .documents import Node

MOST_BYTES = 1 << 20
PARAMETER = "job_env_file"
env_file_option = click.option(
    "--env-file",
    PARAMETER,
    metavar="FILE",
    type=PATH,
    help="Variables for the job, a NAME=VALUE a line; --env stands over it. No secrets: see `secrets`.",
)


def read_env_file(path: str) -> Node:
    """The variables of a file, each with its line.

    Raises:
        UsageError: it cannot be read, or a line is not NAME=VALUE; the line is named and never repeated.
    """
    try:
        data = read_regular(path, MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--env-file: {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"--env-file: {path} is larger than {MOST_BYTES >> 20} MiB")
    found: dict[str, Node] = {}
    duplicates: list[tuple[str, int]] = []
    for number, line in enumerate(_decode(data, path).split("\n"), 1):
        text = line.strip(" \t\r")
        if not text or text.startswith("#"):
            continue
        where = f"{path}:{number}"
        name, equals, value = text.removeprefix("export ").lstrip().partition("=")
        if not equals:
            raise UsageError(f"{where}: is not NAME=VALUE", hint="nothing was started")
        name, value = name.rstrip(), _unquote(value.lstrip(" \t"), where)
        if name in found:
            duplicates.append((name, number))
        found[name] = Node(value, where, line=number, text=value)
    return Node(found, f"{path}:1", line=1, duplicates=tuple(duplicates))


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--env-file: {path} is not UTF-8 (byte {error.start})") from error


def _unquote(value: str, where: str) -> str:
    if value[:1] not in {'"', "'"}:
        return value
    if len(value) < 2 or value[-1] != value[0] or value[0] in value[1:-1]:
        raise UsageError(f"{where}: a quote that does not end the value", hint="write the value without quotes")
    return value[1:-1]
