"""Jobs as rows of a CSV file: one column for each parameter, and a few columns with a meaning of their own.

``name``, ``cost`` and ``overlay`` are those of the sweep file, ``job.KEY`` is a key of job files (``job.timeout``); an
empty field says nothing, so the value that holds for all stands.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from holdfast.cli.job.documents import Node, resolve_plain
from holdfast.cli.job.schema import BY_PATH
from holdfast.core.near import find_near
from holdfast.core.queue.grid import GridError, check_parameter, check_values

from .read import FileProblems, read_text
from .sweep_file import JobOverride, read_cost

if TYPE_CHECKING:
    from collections.abc import Mapping

HINT = "nothing was handed in; the first row names the columns, `holdfast sweep submit --help` has more"
OWN_COLUMNS = frozenset({"name", "cost", "overlay"})
JOB = "job."
DELIMITERS = ",;\t"


def load_jobs(path: str) -> list[JobOverride]:
    """The jobs in a CSV file.

    Raises:
        JobFileError: it cannot be read, or has mistakes; up to ten are named with their lines.
    """
    text = read_text(path, "table of jobs")
    problems = FileProblems()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_find_delimiter(text), strict=True)
    jobs: list[JobOverride] = []
    columns: list[str] = []
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if not any(field.strip() for field in row) or row[0].lstrip().startswith("#"):
                continue
            if not columns:
                columns = [field.strip() for field in row]
                _check_columns(columns, where, problems)
                problems.raise_any(HINT)
            elif len(row) != len(columns):
                problems.add(where, f"has {len(row)} fields, the first row has {len(columns)}", reader.line_num)
            else:
                fields = {name: field.strip() for name, field in zip(columns, row, strict=True) if field.strip()}
                _read_row(fields, where, reader.line_num, jobs, problems)
    except csv.Error as error:
        problems.add(f"{path}:{reader.line_num}", f"not valid CSV: {error}", reader.line_num)
    if not jobs and not problems:
        problems.add(path, "holds no jobs")
    problems.raise_any(HINT)
    return jobs


def _find_delimiter(text: str) -> str:
    """The separator of the first row: a comma, as RFC 4180 says, or what spreadsheets of other languages write."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return max(DELIMITERS, key=first.count)


def _check_columns(columns: list[str], where: str, problems: FileProblems) -> None:
    for index, name in enumerate(columns):
        try:
            if name in columns[:index]:
                raise GridError("is there twice")
            if name.startswith(JOB):
                _check_key(name.removeprefix(JOB))
            elif name not in OWN_COLUMNS:
                check_parameter(name)
        except GridError as error:
            problems.add(where, f"column {index + 1}, {name[:60]!r}: {error}")


def _check_key(path: str) -> None:
    if path not in BY_PATH:
        near = find_near(path, BY_PATH)
        raise GridError(f"no key of job files{f'; did you mean {JOB}{near}?' if near else ''}")


def _read_row(
    fields: Mapping[str, str], where: str, line: int, jobs: list[JobOverride], problems: FileProblems
) -> None:
    params = {name: text for name, text in fields.items() if name not in OWN_COLUMNS and not name.startswith(JOB)}
    spec = {
        name.removeprefix(JOB): Node(resolve_plain(text), where, line, text)
        for name, text in fields.items()
        if name.startswith(JOB)
    }
    try:
        for name, value in params.items():
            check_values(name, [value])
        cost = read_cost(fields["cost"]) if "cost" in fields else None
        overlays = tuple(fields["overlay"].split("+")) if "overlay" in fields else ()
        if not params and not overlays and "name" not in fields:
            raise GridError("has neither a name nor a parameter")
    except ValueError as error:
        problems.add(where, str(error), line)
        return
    jobs.append(JobOverride(where, {}, spec, params, overlays, cost, fields.get("name", "")))
