"""Which tests took longest: from the XML that `make test` and `make test-rest` leave.

With --over, words come only when the whole took longer than that: the limit is a wish that a machine may be too slow
or too busy for, so it is said and fails nothing.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def read_times(path: Path) -> tuple[float, list[tuple[float, str]]]:
    """How long the whole took by the clock, and each test, slowest first, in seconds.

    Raises:
        OSError: there is no such file.
        ValueError: it is not the XML of a run of the tests.
    """
    try:
        suite = ET.parse(path).getroot().find("testsuite")  # noqa: S314 - our own tests wrote it
    except ET.ParseError as error:
        message = f"{path}: {error}"
        raise ValueError(message) from error
    if suite is None:
        message = f"{path}: no testsuite in it"
        raise ValueError(message)
    tests = [
        (float(case.get("time", "0")), f"{case.get('classname', '')}::{case.get('name', '')}")
        for case in suite.iter("testcase")
    ]
    return float(suite.get("time", "0")), sorted(tests, reverse=True)


def main(arguments: list[str] | None = None) -> int:
    """Print the list; 1 when a file cannot be read."""
    parser = argparse.ArgumentParser(description="List the slowest tests of the last runs.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="XML of a run of the tests")
    parser.add_argument("--most", type=int, default=15, metavar="N", help="tests to list (default: %(default)s)")
    parser.add_argument(
        "--over", type=float, default=0.0, metavar="S", help="say nothing of a run that took S s or less"
    )
    options = parser.parse_args(arguments)
    if not options.files:
        print("no run of the tests has left its times yet: `make test`", file=sys.stderr)
        return 1
    try:
        for path in options.files:
            whole, tests = read_times(path)
            if whole <= options.over:
                continue
            if options.over:
                print(f"WARNING: the tests took {whole:.0f} s; they should take {options.over:.0f} s at most.")
            print(f"{path.stem}: {len(tests)} tests, {whole:.0f} s; the slowest:")
            for seconds, name in tests[: options.most]:
                print(f"{seconds:8.2f} s  {name}")
    except (OSError, ValueError) as error:
        print(f"slowest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
