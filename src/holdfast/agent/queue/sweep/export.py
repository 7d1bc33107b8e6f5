"""The whole table of a sweep as a file for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING

from holdfast.core.queue.results import describe_row, list_metrics
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.queue.results import ResultRow


def format_csv(rows: Sequence[ResultRow]) -> str:
    """The table as CSV: parameters as they are, numbers in full, ``final`` true only where they are results."""
    params = list(dict.fromkeys(name for row in rows for name in row.job.params))
    metrics = list_metrics(rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    own = ["job", "state", "final", "attempts", "seconds", "exit_code", "failure", "run_id", "sha256"]
    writer.writerow([*own, *(f"param.{name}" for name in params), *metrics])
    for row in rows:
        job = row.job
        facts = [job.name, job.state.value, str(row.final).lower(), job.attempts, row.seconds]
        facts += [job.exit_code, job.failure, job.run_id, job.sha256]
        values = [*facts, *(job.params.get(name) for name in params), *(row.metrics.get(name) for name in metrics)]
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def export(group: str, rows: Sequence[ResultRow], path: str, *, overwrite: bool) -> None:
    """Write the whole table into a file, at once or not at all.

    Raises:
        UsageError: its ending tells no form.
        StorageError: it is there already, or cannot be written.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in {".csv", ".json"}:
        raise UsageError(f"{path}: the ending does not tell the form", hint="write to NAME.csv or NAME.json")
    if not overwrite and os.path.lexists(path):
        raise StorageError(f"{path} is there already", hint="--overwrite replaces it")
    data = format_csv(rows).encode("utf-8", "replace") if ending == ".csv" else _format_json(group, rows)
    try:
        files.commit(path, data, mode=0o644)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df and the directory's permissions") from error


def _format_json(group: str, rows: Sequence[ResultRow]) -> bytes:
    content = {"schema": 1, "group": group, "jobs": wire.encode([describe_row(row) for row in rows])}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
