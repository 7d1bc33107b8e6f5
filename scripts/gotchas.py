"""How many gotchas of the catalogue are handled, and what shows it: the catalogue against tests/gotchas.tsv.

A handled row (prevented, detected or remedied) needs code that exists and a test that exists; a row that is not handled
needs a reason. ``--quiet`` prints the counts only. Exit code 1 when something is missing.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from holdfast.diagnosis.catalogue import Gotcha, Mode, all_gotchas  # noqa: E402 - after the path

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOWN = ROOT / "tests" / "gotchas.tsv"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read_shown(path: Path = SHOWN) -> dict[str, list[str]]:
    """Gotcha id to the tests that show it."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        gotcha, _, test = line.partition("\t")
        found.setdefault(gotcha, []).append(test)
    return found


def find_problems(rows: tuple[Gotcha, ...], shown: dict[str, list[str]], root: Path = ROOT) -> Iterator[str]:
    """What is wrong, a sentence for each."""
    known = {row.id for row in rows}
    yield from (f"{gotcha} in tests/gotchas.tsv is not in the catalogue" for gotcha in shown if gotcha not in known)
    for row in rows:
        if Mode.LATER in row.modes:
            if not row.reason or len(row.modes) > 1:
                yield f"{row.id} is not handled and does not say why"
            continue
        if not row.code:
            yield f"{row.id} names no code"
        for module in row.code:
            if importlib.util.find_spec(f"holdfast.{module}") is None:
                yield f"{row.id}: there is no module holdfast.{module}"
        if not shown.get(row.id):
            yield f"{row.id} is shown by no test"
        yield from (f"{row.id}: there is no test {test}" for test in shown.get(row.id, ()) if not _exists(root, test))


def _exists(root: Path, test: str) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    wanted = name.partition("[")[0].rpartition("::")[2]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, FUNCTIONS) and node.name == wanted for node in ast.walk(tree))


def main() -> int:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="print the counts only")
    options = parser.parse_args()
    rows, shown = all_gotchas(), read_shown()
    if not options.quiet:
        for row in rows:
            modes = ", ".join(mode.value for mode in row.modes)
            print(f"{row.id:7} {modes:30} {len(shown.get(row.id, ())):2} tests  {row.title}")
    problems = list(find_problems(rows, shown))
    counts = Counter(mode for row in rows for mode in row.modes)
    handled = [row for row in rows if Mode.LATER not in row.modes]
    print(
        f"{len(handled)} of {len(rows)} gotchas are handled by code "
        f"({counts[Mode.PREVENTED]} prevented, {counts[Mode.DETECTED]} detected, {counts[Mode.REMEDIED]} remedied); "
        f"{len(rows) - len(handled)} are not yet, with the reason"
    )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
