"""How many gotchas of the catalogue are handled, and what shows it: the catalogue against the tests' markers.

A test carries a gotcha that it reproduces, `pytest.mark.gotcha("U35")`, and fails when what handles it is taken away.
A handled row (prevented, detected or remedied) needs code that exists and a test that carries it; a row that is not
handled needs a reason and has no test. ``--quiet`` prints the counts only. Exit code 1 when something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from holdfast.diagnosis.catalogue import Gotcha, GotchaMode, all_gotchas  # noqa: E402 - after the path
from scripts.claims import find_claims  # noqa: E402 - after the path

if TYPE_CHECKING:
    from collections.abc import Iterator


def find_shown() -> dict[str, set[str]]:
    """Gotcha id to the tests that carry it."""
    return find_claims(ROOT / "tests", "gotcha")


def find_problems(rows: tuple[Gotcha, ...], shown: dict[str, set[str]]) -> Iterator[str]:
    """What is wrong, a sentence for each."""
    known = {row.id for row in rows}
    for gotcha in sorted(shown.keys() - known):
        yield f"{', '.join(sorted(shown[gotcha]))} carries {gotcha}, which is not in the catalogue"
    for row in rows:
        if GotchaMode.LATER in row.modes:
            if not row.reason or len(row.modes) > 1:
                yield f"{row.id} is not handled and does not say why"
            if row.id in shown:
                yield f"{row.id} is not handled, and {', '.join(sorted(shown[row.id]))} carries it"
            continue
        if not row.code:
            yield f"{row.id} names no code"
        for module in row.code:
            if importlib.util.find_spec(f"holdfast.{module}") is None:
                yield f"{row.id}: there is no module holdfast.{module}"
        if row.id not in shown:
            yield f"{row.id} is shown by no test"


def main() -> int:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="print the counts only")
    options = parser.parse_args()
    rows, shown = all_gotchas(), find_shown()
    if not options.quiet:
        for row in rows:
            modes = ", ".join(mode.value for mode in row.modes)
            print(f"{row.id:7} {modes:30} {len(shown.get(row.id, ())):2} tests  {row.title}")
    problems = list(find_problems(rows, shown))
    counts = Counter(mode for row in rows for mode in row.modes)
    handled = [row for row in rows if GotchaMode.LATER not in row.modes]
    print(
        f"{len(handled)} of {len(rows)} gotchas are handled by code "
        f"({counts[GotchaMode.PREVENTED]} prevented, {counts[GotchaMode.DETECTED]} detected, "
        f"{counts[GotchaMode.REMEDIED]} remedied); "
        f"{len(rows) - len(handled)} are not yet, with the reason"
    )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
