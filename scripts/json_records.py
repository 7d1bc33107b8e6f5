"""What ``--json`` prints, from the records themselves: the schema of each verb's object, and the page about it.

`VERBS` says which records a verb answers with. A test holds real outputs against `build_schema`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.model.record import FIELDS, is_record

if TYPE_CHECKING:
    from types import ModuleType

AGENT = "holdfast.agent"
QUEUE_CHANGES = ("accept", "cancel", "clear", "drain", "edit", "move", "pause", "resume", "retry", "set")
VERBS: dict[str, tuple[str, ...]] = {
    "run": (f"{AGENT}.view.live.attempt:Followed",),
    "run -d": (
        f"{AGENT}.view.live.start:Started",
        "holdfast.cli.run.there:StartedThere",
        "holdfast.model.order:RunRef",
    ),
    "run --dry-run": (f"{AGENT}.checks.dry_run:DryRun", "holdfast.desk.orders.plan:OrderPlan"),
    "attach": (f"{AGENT}.view.live.attempt:Followed",),
    "submit": ("holdfast.model.queue_order:Submitted", "holdfast.desk.orders.enqueue:TakenThere"),
    "submit --dry-run": (f"{AGENT}.queue.submit.preview:Preview", "holdfast.desk.orders.enqueue:JobsPlan"),
    "preflight": (f"{AGENT}.checks.preflight:PreflightReport",),
    "ls": (f"{AGENT}.view.runs.listing:RunList", "holdfast.desk.runs.listing:PlacedRuns"),
    "ls --using": (f"{AGENT}.view.runs.listing:LiveUsers",),
    "show": (f"{AGENT}.view.page.dossier:Dossier",),
    "show --diff": (f"{AGENT}.view.page.dossier:CodeDiff",),
    "show --against": (f"{AGENT}.view.page.comparison:RunComparison",),
    "diagnose": (f"{AGENT}.view.page.diagnosis:DiagnosisReport",),
    "logs": (f"{AGENT}.view.live.logs:Logs", "holdfast.cli.verbs.logs:ManyLogs"),
    "metrics": (f"{AGENT}.view.live.metrics:Metrics", f"{AGENT}.view.live.metrics:ManyMetrics"),
    **dict.fromkeys(
        ("wait", "submit --wait", "sweep submit --wait"),
        (f"{AGENT}.queue.wait.names:Waited", "holdfast.cli.placed.wait:PlacedWait"),
    ),
    "files": (f"{AGENT}.view.run_files:FileList",),
    "gpus": (f"{AGENT}.cards.card_list:CardList",),
    "gpus health": (f"{AGENT}.cards.health:CardHealthReport",),
    "gpus idle": (f"{AGENT}.cards.idle:IdleCards",),
    "gpus reservations": (f"{AGENT}.cards.reserved:Reservations",),
    "gpus usage": (f"{AGENT}.cards.usage:UsageReport",),
    "stop": (f"{AGENT}.control.stop:StopResult", f"{AGENT}.control.stop_several:StoppedRuns"),
    "restart": (f"{AGENT}.control.restart:Restarted",),
    "restart --dry-run": ("holdfast.cli.verbs.restart:PlannedRestart",),
    "restart --follow": (f"{AGENT}.view.live.attempt:Followed",),
    "checkpoint": (f"{AGENT}.control.checkpoints.request:CheckpointAnswer",),
    "checkpoints ls": (f"{AGENT}.view.checkpoints.checkpoint_list:CheckpointList",),
    "checkpoints verify": (f"{AGENT}.view.checkpoints.checkpoint_list:CheckpointProofs",),
    "checkpoints show": (f"{AGENT}.view.checkpoints.checkpoint_list:CheckpointPage",),
    "limit": (f"{AGENT}.control.job.live_limits:LimitsAnswer",),
    "rm": (f"{AGENT}.control.remove:Removal",),
    "prune": (f"{AGENT}.control.prune:ScratchPruning",),
    "adopt": (f"{AGENT}.control.adopt:Adopted",),
    **dict.fromkeys(("queue", "queue ls"), (f"{AGENT}.queue.view.listing:QueueList",)),
    "queue show": (f"{AGENT}.queue.view.job:JobView",),
    "queue check": (f"{AGENT}.queue.view.check:Checked",),
    **dict.fromkeys(
        (f"queue {verb}" for verb in QUEUE_CHANGES),
        (f"{AGENT}.queue.change.change:QueueChange",),
    ),
    "queue install": (f"{AGENT}.queue.change.boot_entry:Installed",),
    **dict.fromkeys(("queue uninstall", "patrol uninstall"), ("holdfast.cli.consent:RemovedEntries",)),
    "sweep submit": (f"{AGENT}.queue.sweep.take:TakenSweep", "holdfast.desk.orders.enqueue:TakenThere"),
    "sweep submit --dry-run": (f"{AGENT}.queue.sweep.take:SweepPreview", "holdfast.desk.orders.enqueue:JobsPlan"),
    "sweep add": (f"{AGENT}.queue.sweep.take:TakenSweep",),
    "sweep add --dry-run": (f"{AGENT}.queue.sweep.take:SweepPreview",),
    "sweep check": (f"{AGENT}.queue.view.check:Checked",),
    "sweep retry": (f"{AGENT}.queue.change.change:QueueChange",),
    "sweep show": ("holdfast.core.queue.results:SweepTable",),
    "doctor": (f"{AGENT}.doctor.examine:Examination",),
    "doctor --reap": (f"{AGENT}.doctor.reap:ReapReport",),
    "patrol": (f"{AGENT}.patrol.report:PatrolReport", "holdfast.desk.runs.patrol:PlacedPatrol"),
    "reconcile": (f"{AGENT}.patrol.reconcile:ReconcileReport", "holdfast.desk.runs.reconcile:ReconciledPlace"),
    "handbook": (f"{AGENT}.view.page.handbook:Handbook",),
    "cp": ("holdfast.desk.fetch:Fetched",),
    "pull": ("holdfast.desk.pull:Pulled", "holdfast.desk.pull:PulledRuns"),
    "pull --verify": (
        "holdfast.transfer.pull.verify:VerifiedCopy",
        "holdfast.transfer.pull.verify:VerifiedCopies",
    ),
    "pull --dry-run": ("holdfast.desk.pull:PullPlan", "holdfast.desk.pull:PullPlans"),
    "push": ("holdfast.transfer.data.push:Pushed",),
    "gpus clear": (f"{AGENT}.cards.quarantine:CardCleared",),
    "gpus quarantine": (f"{AGENT}.cards.quarantine:CardQuarantined",),
    "gpus release": ("holdfast.host.lease.force_release:BrokenLease",),
    **dict.fromkeys(("gpus reserve", "gpus unreserve"), ("holdfast.core.cards.reservations:Reservation",)),
    "gpus reset-request": (f"{AGENT}.cards.reset:ResetRequest",),
    "checkpoints export": (f"{AGENT}.control.checkpoints.files:ExportedCheckpoint",),
    "checkpoints prune": (f"{AGENT}.control.checkpoints.files:CheckpointPruning",),
    "results collect": (f"{AGENT}.queue.sweep.collect:Collected",),
    "results copy": (f"{AGENT}.control.results.copy:CopiedRun",),
    "results shard": (f"{AGENT}.control.results.shards:Shards",),
    "teardown": ("holdfast.desk.teardown.gate:Gate", "holdfast.desk.teardown.gate:ApprovedAct"),
    "teardown --check": ("holdfast.model.teardown:GoneCheck",),
    "lifecycle": ("holdfast.desk.lifecycle:Lifecycle",),
    "cost": ("holdfast.desk.cost.estimate:Costs",),
    **dict.fromkeys(("place", "place ls"), ("holdfast.desk.place_list:PlaceList",)),
    **dict.fromkeys(("place show", "place probe"), ("holdfast.desk.place_list:PlacePage",)),
    "place add": ("holdfast.cli.verbs.place.add:AddedPlace",),
    "place rm": ("holdfast.cli.verbs.place.rm:RemovedPlace",),
    "place trust": ("holdfast.desk.places.host_keys:HostKeyPage",),
    **dict.fromkeys(("profile", "profile ls"), ("holdfast.desk.profiles.listing:ProfileList",)),
    "profile check": ("holdfast.cli.verbs.profile.check:ProfileCheck",),
    "profile probe": ("holdfast.cli.verbs.profile.probe:BegunProfile",),
    "profile survives": ("holdfast.core.profile.survive:Survival",),
    "profile verify": ("holdfast.cli.verbs.profile.verify:VerifiedFacts",),
    "profile show": ("holdfast.desk.profiles.read:Profile",),
    "patrol install": (f"{AGENT}.patrol.report:InstalledEntry",),
    "sentinel": (
        f"{AGENT}.patrol.sentinel.arm:ArmedSentinel",
        f"{AGENT}.patrol.sentinel.arm:SentinelList",
        f"{AGENT}.patrol.sentinel.arm:SentinelResult",
    ),
    "secret ls": ("holdfast.desk.secrets:SecretList",),
    "tunnel": ("holdfast.desk.tunnel:Tunnel",),
    "drill": (f"{AGENT}.drill.report:DrillReport",),
    "config ls": ("holdfast.cli.job.user_defaults:UserDefaults",),
    "notify test": ("holdfast.cli.verbs.notify.test:NotifyTrial",),
    "completion": ("holdfast.cli.completion:CompletionScript",),
    "rules": (f"{AGENT}.view.page.conduct:Conduct",),
    "explain": tuple(
        f"holdfast.diagnosis.explain:{name}" for name in ("Gotchas", "Gotcha", "ClassPage", "XidPage", "ExitCodePage")
    ),
    "fault list": (f"{AGENT}.doctor.faults:FaultList",),
    "fault run": (f"{AGENT}.doctor.faults:FaultExercise",),
}
OPEN = ("schema",)
"""Verbs whose object is no record of ours: that of `schema` is itself a JSON Schema."""
_PLAIN: dict[str, dict[str, object]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
}
Definitions = dict[type, dict[str, Any]]
"""Record classes to their form in the schema."""
_LISTS = frozenset({"tuple", "list", "Sequence", "frozenset", "set"})
_OBJECTS = frozenset({"dict", "Mapping", "Facts"})


def build_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12): ``verbs`` name the objects, ``$defs`` has each record once."""
    defs: Definitions = {}
    verbs = {verb: [refer(_load(name), defs)["$ref"] for name in names] for verb, names in VERBS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What holdfast prints with --json; every object also has `schema`, the version of this form",
        "verbs": verbs,
        "$defs": name_definitions(defs),
    }


def name_definitions(defs: Definitions) -> dict[str, Any]:
    """The records by the name of their class, of which each may be there once."""
    named: dict[str, type] = {}
    for cls in defs:
        if cls.__name__ in named:
            both = f"{cls.__module__} and {named[cls.__name__].__module__}"
            raise SystemExit(f"{both} both have a record {cls.__name__} in the schema: rename one of them")
        named[cls.__name__] = cls
    return {name: defs[cls] for name, cls in sorted(named.items())}


def build_page() -> str:
    """docs/json.md."""
    schema = build_schema()
    lines = [INTRODUCTION]
    for verb, names in schema["verbs"].items():
        records = " or ".join(_link(name.rpartition("/")[2]) for name in names)
        lines.append(f"- `holdfast {verb} --json`: {records}")
    lines += ["", "`holdfast schema` prints a JSON Schema, that of job files, and so has none here."]
    for name, found in schema["$defs"].items():
        lines += ["", f"## {name}", "", found["description"].replace("``", "`"), "", "| field | form |", "|---|---|"]
        lines += [f"| `{field}` | {_say(form)} |" for field, form in found["properties"].items()]
    return "\n".join(lines) + "\n"


INTRODUCTION = """# JSON

Made by `scripts/generate_docs.py` from the records that the program answers with; do not edit. The same as a
JSON Schema: [json-schema.json](json-schema.json). A test holds real outputs against it.

One object on standard output, with `schema`, the version of the form. A field is never absent; what is not known
is null. New fields may come, so ignore those that you do not know. An error is an object with `error`, which has
`code`, `message`, `hint` and `exit_code`.

The words mean the same in every object:

| word | means |
|---|---|
| `run_id`, `name`, `run_dir`, `attempt` | which run, its name, its directory, which attempt (from 1) |
| `condition` | how a run stands, in the words of `ls`: running, waiting, succeeded, failed, stopped, lost ... |
| `state` | of a job of the queue: where it stands there; of a run that was just started: its record |
| `exit_code` | the run's own; in the answer of a verb that ends with one, that |
| `failure`, `cause`, `action` | the class of an end without success, what it rests on, what to do |
| `kind` | in a verdict the class (docs/diagnosis.md); in a `state` which one it is |
| `note`, `notice`, `reason`, `why` | words for people; do not parse them |
| `..._at`, `at`, `since`, `until` | moments: text is ISO 8601 in UTC, a number is epoch seconds |
| `..._s`, `..._bytes` | seconds, bytes |
| `place` | the name of a place; in what `place add`, `show` and `probe` answer its configuration |
| `path` | of a file or directory |
| `reach` | whether a place answers: `here`, the code of the error, or null where it was not asked |
| `cards` | of a run: indexes as text (`0,1`); of a box: a list of cards; of a job: how many it wants |
"""


@cache
def _load(name: str) -> type:
    module, _, attribute = name.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def refer(cls: type, defs: Definitions) -> dict[str, Any]:
    """The reference to a record, which stands in `defs` from then on."""
    if cls not in defs:
        defs[cls] = {}
        fields: dict[str, Any] = getattr(cls, FIELDS)
        properties = {field: _parse(str(one.type), _find_module(cls, field), defs) for field, one in fields.items()}
        about = " ".join((inspect.getdoc(cls) or "").split())
        defs[cls] = {"type": "object", "description": about, "properties": properties, "required": list(properties)}
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _find_module(cls: type, field: str) -> ModuleType:
    """Where a field is declared, which may be a class above: its annotation has the names of that module."""
    owner = next(one for one in cls.__mro__ if field in inspect.get_annotations(one))
    return sys.modules[owner.__module__]


def _parse(text: str, module: ModuleType, defs: Definitions) -> dict[str, Any]:
    return _form(ast.parse(text.strip("'\""), mode="eval").body, module, defs)


def _form(node: ast.expr, module: ModuleType, defs: Definitions) -> dict[str, Any]:
    if isinstance(node, ast.Constant):
        return dict(_PLAIN["None"]) if node.value is None else _parse(str(node.value), module, defs)
    if isinstance(node, ast.BinOp):
        return {"anyOf": [_form(node.left, module, defs), _form(node.right, module, defs)]}
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in _LISTS:
            same = len(inner) == 1 or (isinstance(inner[-1], ast.Constant) and inner[-1].value is ...)
            return {"type": "array", **({"items": _form(inner[0], module, defs)} if same else {})}
        return {"type": "object"} if outer in _OBJECTS else {}
    word = ast.unparse(node)
    if word in _PLAIN:
        return dict(_PLAIN[word])
    if word in _OBJECTS:
        return {"type": "object"}
    found = _find(word, module)
    if found is None:
        return {}
    if isinstance(found, type) and issubclass(found, Enum):
        return {"enum": [item.value for item in found]}
    if isinstance(found, type) and is_record(found):
        return refer(found, defs)
    return {}


def _find(word: str, module: ModuleType) -> object:
    """What a name means in a module, also one that is imported for type checking alone."""
    if hasattr(module, word):
        return getattr(module, word)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and word in {alias.asname or alias.name for alias in node.names}:
            base = module.__name__.rsplit(".", node.level)[0] if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            return getattr(importlib.import_module(name), word, None)
    return None


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _say(form: dict[str, Any]) -> str:
    """A form in words, for the page."""
    if "anyOf" in form:
        parts = [_say(one) for one in form["anyOf"]]
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in form:
        return _link(form["$ref"].rpartition("/")[2])
    if "enum" in form:
        return ", ".join(f"`{value}`" for value in form["enum"])
    if form.get("type") == "array":
        return f"list of {_say(form['items'])}" if form.get("items") else "list"
    names = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
        "null": "null",
        "object": "object",
    }
    return names.get(str(form.get("type", "")), str(form.get("type", "any")))


def dump_schema() -> str:
    """docs/json-schema.json."""
    return json.dumps(build_schema(), indent=1) + "\n"
