"""Check how our own files import each other: no circles, few imports inside functions, no crowded folders.

An import inside a function counts like one at the top, because a circle that only laziness opens is still a circle:
neither file can be read, tested or moved without the other. Imports under `if TYPE_CHECKING:` do not count, they never
run; `import_module` counts where the name is written out in the call. A package's `__init__` is a file like any other:
it is imported by who takes something from it, not by who takes something from a file beside it.

Four things are looked at, the first three with a limit in `LIMITS`:

- circles: groups of files that each lead to each other (strongly connected components);
- imports of our own inside functions, with and without a word why: `from .x import y  # lazy: optional parser`;
- Python files in a folder, its `__init__` and `__main__` included;
- verbs that look and change nothing: a verb that is not in `ACTING` leads to no file of `ACTS`, whatever is between.

`--check` prints every offender of a limit that does not hold as `file:line: what`, and exits 1 when there is one.
Without it the whole survey is printed, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {
    "circles": 0,
    "unmarked": 0,  # imports inside functions without a word why
    "marked": 98,  # imports inside functions with one; many keep the desk (30 ms) from commands that stay here
    "files": 15,  # in a folder
}
LISTS = {
    "cli/verbs": "a verb each",
    "cli/verbs/queue": "a verb each",
    "cli/render": "a noun each",
    "model": "a noun each",
}
"""Folders that are a plain list of things of one kind: no limit, and why."""

ACTS = (
    *("holdfast.agent.control", "holdfast.agent.launch"),
    *("holdfast.agent.queue.change", "holdfast.agent.queue.submit"),
    *("holdfast.agent.cards.release", "holdfast.agent.cards.reserve"),
    "holdfast.agent.patrol.sentinel.arm",
)
"""What acts on runs (makes, starts, stops, restarts, adopts, settles, copies and removes them), on the queue and its
worker, on leases and reservations, and what leaves a process behind."""
VERBS = "holdfast.cli.verbs."
ACTING = frozenset(
    {
        *("adopt", "attach", "checkpoint", "doctor", "drill", "exec", "limit", "prune", "reconcile", "restart", "rm"),
        *("run", "sentinel", "shell", "stop", "submit", "wait"),
        *("gpus.release", "gpus.reserve", "gpus.unreserve"),
        *("checkpoints.export", "checkpoints.prune", "results.collect", "results.copy", "results.shard"),
        *("queue.accept", "queue.cancel", "queue.clear", "queue.drain", "queue.edit", "queue.install", "queue.move"),
        *("queue.pause", "queue.resume", "queue.retry", "queue.set", "queue.uninstall", "queue.work"),
        *("sweep.add", "sweep.hand_in", "sweep.retry", "sweep.submit"),
    }
)
"""The verbs that lead to one of them. `attach` passes Ctrl-C on, `doctor --reap` ends what ended runs have left, `wait`
sees that a worker is there. What a verb writes of its own (settings, places, secrets, entries of cron) is not looked
at."""

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
SKIPPED = {"_vendor", "__pycache__"}
MARK = "# lazy: "


@dataclass(frozen=True)
class Import:
    """One import statement's way from a file to another file of ours."""

    source: str
    target: str
    path: Path
    line: int
    is_lazy: bool
    is_marked: bool


@dataclass(frozen=True)
class Survey:
    """All that was found under one package."""

    imports: tuple[Import, ...]
    circles: tuple[tuple[str, ...], ...]
    folders: dict[Path, int]
    ways: dict[str, tuple[str, ...]]
    """Of each verb, the shortest way to a file that acts; empty where there is none."""

    def list_lazy(self, *, marked: bool) -> list[Import]:
        """The statements inside functions, each once."""
        found = {(each.path, each.line): each for each in self.imports if each.is_lazy and each.is_marked is marked}
        return [found[place] for place in sorted(found)]


class _Reader(ast.NodeVisitor):
    """Collects the imports of one file."""

    def __init__(self, path: Path, module: str, modules: dict[str, Path], lines: list[str]) -> None:
        self.found: list[Import] = []
        self._path, self._module, self._modules, self._lines = path, module, modules, lines
        self._package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        self._depth = 0

    def visit_If(self, node: ast.If) -> None:
        test = node.test
        name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
        for each in node.orelse if name == "TYPE_CHECKING" else [node.test, *node.body, *node.orelse]:
            self.visit(each)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast chose the name

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self._package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            self._add(node, inner if inner in self._modules else base)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0] if node.args else None
        if name == "import_module" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            self._add(node, first.value)
        self.generic_visit(node)

    def _add(self, node: ast.Import | ast.ImportFrom | ast.Call, target: str) -> None:
        if target in self._modules and target != self._module:
            text = "\n".join(self._lines[node.lineno - 1 : node.end_lineno])
            self.found.append(Import(self._module, target, self._path, node.lineno, self._depth > 0, MARK in text))


def survey(package: Path) -> Survey:
    """Read every file of `package`, a folder whose name is the package's."""
    modules: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if not SKIPPED.intersection(parts):
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports: list[Import] = []
    for module, path in modules.items():
        text = path.read_text(encoding="utf-8")
        reader = _Reader(path, module, modules, text.splitlines())
        reader.visit(ast.parse(text, str(path)))
        imports += reader.found
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for each in imports:
        graph[each.source].add(each.target)
    imports = list(dict.fromkeys(imports))  # one statement may take several names of one file
    folders = dict(Counter(path.parent for path in modules.values()))
    return Survey(tuple(imports), tuple(find_circles(graph)), folders, find_ways(graph))


def find_circles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """The strongly connected components of more than one file, the largest first."""
    ways = {node: _reach(graph, node) for node in graph}
    circles = {tuple(sorted(other for other in ways[node] if node in ways[other])) for node in graph}
    return sorted((circle for circle in circles if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def find_ways(graph: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """Of each verb, the files on the shortest way to one that acts on runs; empty where no way leads there."""
    verbs = [module for module in graph if module.startswith(VERBS)]
    return {verb.removeprefix(VERBS): _find_way(graph, verb) for verb in verbs}


def _find_way(graph: dict[str, set[str]], start: str) -> tuple[str, ...]:
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:  # grows meanwhile
        if any(f"{way[-1]}.".startswith(f"{act}.") for act in ACTS):
            return way
        for target in sorted(graph[way[-1]] - seen):
            seen.add(target)
            ways.append((*way, target))
    return ()


def list_wrong_verbs(ways: dict[str, tuple[str, ...]], acting: frozenset[str]) -> Iterator[str]:
    """Each verb that acts and is not known to, and each that is said to act and does not."""
    for verb, way in sorted(ways.items()):
        if way and verb not in acting:
            yield f"the verb {verb} only looks (ACTING), and leads to what acts: {' -> '.join(way)}"
    for verb in sorted(acting):
        if not ways.get(verb):
            yield f"the verb {verb} is in ACTING, and leads to nothing that acts"


def list_circle(found: Survey, circle: tuple[str, ...]) -> Iterator[str]:
    """Each import that belongs to a circle, as `file:line: what`."""
    for each in found.imports:
        if each.source in circle and each.target in circle:
            how = " inside a function" if each.is_lazy else ""
            yield f"{_show(each.path)}:{each.line}: in a circle of {len(circle)} files: imports {each.target}{how}"


def find_faults(found: Survey, limits: dict[str, int]) -> Iterator[str]:
    """Every offender of every limit that does not hold."""
    if len(found.circles) > limits["circles"]:
        for circle in found.circles:
            yield from list_circle(found, circle)
    for kind, words in (("unmarked", f"without `{MARK}why`"), ("marked", "with a word why")):
        lazies = found.list_lazy(marked=kind == "marked")
        if len(lazies) > limits[kind]:
            for each in lazies:
                yield f"{_show(each.path)}:{each.line}: an import inside a function {words}, one of {len(lazies)}"
    for folder, count in sorted(found.folders.items()):
        if count > limits["files"] and not _is_list(folder):
            yield f"{_show(folder)}:1: {count} Python files in one folder, more than {limits['files']}"
    if found.ways:
        yield from list_wrong_verbs(found.ways, ACTING)


def _is_list(folder: Path) -> bool:
    return folder.is_relative_to(PACKAGE) and folder.relative_to(PACKAGE).as_posix() in LISTS


def _show(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main(arguments: list[str] | None = None) -> int:
    """Print the survey, or with `--check` the faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="print what breaks a limit and exit 1 if anything does")
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE)
    options = parser.parse_args(arguments)
    found = survey(options.package.resolve())
    if not found.folders:
        parser.error(f"no Python files in {options.package}")
    if options.check:
        faults = list(find_faults(found, LIMITS))
        print("\n".join(faults), end="\n" if faults else "")
        return 1 if faults else 0
    for circle in found.circles:
        print(f"circle of {len(circle)} files: {', '.join(circle)}")
        for line in list_circle(found, circle):
            print(f"  {line}")
    for folder, count in sorted(found.folders.items()):
        if count > LIMITS["files"] and not _is_list(folder):
            print(f"{_show(folder)}: {count} files")
    unmarked, marked = (len(found.list_lazy(marked=marked)) for marked in (False, True))
    print(f"{len(found.circles)} circles; imports inside functions: {unmarked} without a word why, {marked} with one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
