"""What import-linter cannot say: below the desk only the standard library is imported, whatever the other name is."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.each import each

pytestmark = pytest.mark.pure

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "holdfast"
BELOW_THE_DESK = ("model", "core", "host", "store", "agent", "diagnosis", "faults", "training")
ADAPTED: dict[tuple[str, ...], set[str]] = {
    ("training", "adapters"): {"torch", "transformers", "lightning", "accelerate", "keras", "jax", "numpy"},
    ("training", "storage", "export.py"): {"torch", "numpy"},
    # For type checkers alone.
    ("model", "record.py"): {"typing_extensions"},
}
"""What exists to meet a framework imports it, inside of functions, when the framework's user calls it."""
# A payload of a fault is a job: it imports what a training does.
FILES = sorted(
    path
    for name in BELOW_THE_DESK
    for path in (PACKAGE / name).rglob("*.py")
    if not {"_vendor", "payloads"}.intersection(path.parts)
)


def imported(tree: ast.Module) -> set[str]:
    """The top-level names of all absolute imports, wherever they stand in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.slow
@each("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_below_the_desk_is_standard_library_only(path: Path) -> None:
    foreign = imported(ast.parse(path.read_text(encoding="utf-8"))) - sys.stdlib_module_names - {"holdfast", "pynvml"}
    parts = path.relative_to(PACKAGE).parts
    assert foreign - ADAPTED.get(parts, ADAPTED.get(parts[:2], set())) == set()


def test_the_search_sees_imports_inside_functions() -> None:
    assert imported(ast.parse("import os\ndef f():\n    from yaml.nodes import Node\n")) == {"os", "yaml"}


# ------------------------------------------------------------------------------------------------ verbs, print halves

BOX = ("agent", "diagnosis", "faults", "host", "store", "training")
ROOMS = (
    "agent.caller",
    *(
        "agent.cards",
        "agent.view",
        "agent.control",
        "agent.doctor",
        "agent.checks.dry_run",
        "agent.checks.preflight",
        "agent.doctor.faults",
    ),
    *(
        *("agent.place.carried", "agent.place.poll"),
        "agent.patrol.sentinel.arm",
        *("agent.patrol.memory", "agent.patrol.news", "agent.patrol.patrol"),
        *("agent.patrol.report", "agent.patrol.tell", "agent.patrol.tick"),
        "agent.patrol.reconcile",
        *("agent.queue.submit", "agent.queue.view", "agent.queue.change", "agent.queue.wait", "agent.queue.sweep"),
        *("agent.drill.rehearsal", "agent.drill.report"),
        "agent.messages.trial",
        "diagnosis.explain",
    ),
)
"""Whose functions a verb may call: they answer with records."""


def imported_at_run_time(tree: ast.Module) -> set[str]:
    """Our modules of the box that a file imports, function-level ones too; those for annotations alone are left out."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and id(node) not in for_types:
            found.add(node.module)
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            found.update(alias.name for alias in node.names)
    names = {name.removeprefix("holdfast.") for name in found if name.startswith("holdfast.")}
    return {name for name in names if name.split(".")[0] in BOX}


def is_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def find_offenders(folder: str, rooms: tuple[str, ...]) -> dict[str, list[str]]:
    """Files of the command line below `folder` with what they import of the box beside `rooms`."""
    found = {}
    for path in sorted((PACKAGE / "cli" / folder).rglob("*.py")):
        modules = imported_at_run_time(ast.parse(path.read_text(encoding="utf-8")))
        wrong = sorted(name for name in modules if not is_in(name, rooms))
        if wrong:
            found[str(path.relative_to(PACKAGE / "cli"))] = wrong
    return found


def test_print_halves_know_nothing_of_the_box() -> None:
    # How old something is depends on now.
    assert find_offenders("render", ("host.clock",)) == {}


def test_verbs_call_rooms_and_nothing_below_them() -> None:
    assert find_offenders("verbs", ROOMS) == {}


def test_the_rest_of_the_desk_calls_rooms_too() -> None:
    found = find_offenders("", ROOMS)
    # The supervisor's interpreter is spawned before anything else is loaded; standard streams are there before that.
    assert found.pop("main.py") == ["agent.prestart", "host.process.standard_streams"]
    assert found.pop("placed/route.py") == ["agent.prestart"]
    # A notebook interrupts every process that it started: Ctrl-C there is not meant for us.
    assert found.pop("attach.py") == ["host.process.surroundings"]
    # Who comes from a desk goes on in the environment of a login there, before anything else is done.
    assert found.pop("placed/from_desk.py") == ["agent.login_environment"]
    # What is added to a sweep is compared with its recipe while the queue stands still.
    assert found.pop("sweep/add.py") == ["agent.queue.open"]
    assert {name for name in found if not name.startswith("render/")} == set()


def test_the_search_leaves_out_what_is_for_annotations() -> None:
    text = (
        "if TYPE_CHECKING:\n    from holdfast.host import files\ndef f():\n    from holdfast.store.index import Index\n"
    )
    assert imported_at_run_time(ast.parse(text)) == {"store.index"}


def public_classes(folder: Path) -> list[tuple[str, str]]:
    """Each public class of the package's own files below `folder`: its name, and where it stands."""
    return [
        (node.name, f"{path.relative_to(PACKAGE)}:{node.lineno}")
        for path in sorted(folder.rglob("*.py"))
        if "_vendor" not in path.parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_a_record_of_the_model_shares_its_name_with_nothing() -> None:
    """What all rooms speak of means one thing: `Order`, `Verdict`, `Phase`."""
    taken = {name for name, _ in public_classes(PACKAGE / "model")}
    assert {"Order", "RunState", "Verdict"} <= taken
    found: dict[str, list[str]] = {}
    for name, where in public_classes(PACKAGE):
        found.setdefault(name, []).append(where)
    assert {name: where for name, where in found.items() if name in taken and len(where) > 1} == {}
