"""Places on the screen: configuration, facts with their age, host keys, and what to do next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.desk.place_list import MOST_PARTITIONS, REACHED, list_warnings
from holdfast.host.clock import find_age
from holdfast.model.place import MISSING, UNREADABLE
from holdfast.model.units import format_bytes, format_count, format_duration

from . import clean, fits, note, pairs, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.desk.place_list import PlaceView
    from holdfast.desk.places.host_keys import HostKeys
    from holdfast.model.errors import HoldfastError
    from holdfast.model.place import BoxFacts, CardFacts, DiskFacts, Place, Rent
    from holdfast.model.slurm import PartitionFacts, SlurmFacts

LOOKED_FOR = ("tar", "rsync", "git", "nvidia-smi", "tmux")
MOST_CARDS = MOST_DISKS = 64
MOST_WARNINGS = 20


def print_places(views: Sequence[PlaceView], *, asked: bool) -> None:
    """A row for each place; what is to be said of one stands below."""
    if not views:
        note("no place is configured: holdfast place add NAME USER@HOST; a Host of ~/.ssh/config needs none")
        return
    headers = ["place", "kind", "host", "root", "cards", "measured", *(["reach"] if asked else [])]
    rows = [[*_row(view), *([_describe_reach(view)] if asked else [])] for view in views]
    if not fits(headers, rows):
        at = headers.index("root")  # `holdfast place show` has it
        headers, rows = headers[:at] + headers[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    table(headers, rows, right=(headers.index("cards"),))
    for view in views:
        if view.problem:
            note(view.problem)
        if view.reason:
            note(view.reason)


def _describe_reach(view: PlaceView) -> str:
    return "here" if view.reach == REACHED else "no answer"


def _shorten(path: str | None, facts: BoxFacts | None) -> str | None:
    """A path of a box, as ``~/...`` where it is below the home there."""
    home = "" if facts is None else facts.home.rstrip("/")
    return f"~{path[len(home) :]}" if path and home and path.startswith(f"{home}/") else path


def _row(view: PlaceView) -> list[object]:
    place, facts = view.place, view.facts
    return [
        place.name,
        place.kind if place.configured else "ssh alias",
        _describe_host(place),
        _shorten(place.root or (facts.root if facts else None), facts),
        _count_cards(facts) if facts else None,
        _describe_age(facts.measured_at) if facts else "never",
    ]


def _count_cards(facts: BoxFacts) -> str:
    """Of a Slurm the most that one node has: those of its login node are nobody's."""
    if facts.slurm is None:
        return str(len(facts.cards))
    return f"{max(facts.slurm.cards.values(), default=0)} a node"


def print_place(view: PlaceView) -> None:
    """All that is known of a place; what to mind comes first."""
    place, facts = view.place, view.facts
    warnings = list_warnings(facts, place) if facts else []
    for words in warnings[:MOST_WARNINGS]:
        note(f"warning: {words}")
    if len(warnings) > MOST_WARNINGS:
        note(f"{len(warnings) - MOST_WARNINGS} more warnings; --json lists them all")
    if view.problem:
        note(view.problem)
    pairs([("place", f"{place.name} ({_describe_host(place)})"), ("from", view.source), *_configured(place)])
    if facts is None:
        note(f"it was never measured as it is configured now: holdfast place probe {place.name}")
        return
    print()
    pairs(_measured(facts), wrap=True)


def _configured(place: Place) -> Iterator[tuple[str, object]]:
    for key in ("root", "python"):
        if getattr(place, key) is not None:
            yield f"{key} (configured)", getattr(place, key)
    if place.setup:
        yield "setup", "\n".join(place.setup)
    if place.env_from != "none":
        yield "env_from", place.env_from
    if place.slurm:
        yield "options of sbatch", "\n".join(f"{name}={value}" for name, value in place.slurm.items())
    if place.profile:
        yield "profile", place.profile
    if place.rent is not None:
        yield "rent", "\n".join(_describe_rent(place.rent)) or "nothing is said of it"


def _describe_rent(rent: Rent) -> Iterator[str]:
    currency = f" {rent.currency}" if rent.currency else ""
    if rent.since:
        yield f"since {rent.since[:16]}Z"
    if rent.rate is not None:
        yield f"{rent.rate:g}{currency} an hour"
    if rent.cap is not None:
        yield f"at most {rent.cap:g}{currency}"
    if rent.region:
        yield f"region {rent.region}"
    for words in rent.also:
        yield f"billed besides: {words}"
    if rent.status_command:
        yield f"whether it is there says: {shlex.join(rent.status_command)}"
    if rent.status_url:
        yield f"whether it is there says: {rent.status_url}"


def _measured(facts: BoxFacts) -> Iterator[tuple[str, object]]:
    yield "measured", f"{facts.measured_at[:19]}Z, {_describe_age(facts.measured_at)}"
    yield "machine", f"{facts.box.host}, Linux {facts.kernel}{', the login node' if facts.slurm is not None else ''}"
    yield "account", f"{facts.user} (uid {facts.uid}), home {facts.home}, shell {facts.shell or 'unknown'}"
    yield "runs root", facts.root
    yield "python", f"{facts.python_version} {facts.python}"
    if facts.login_path is not None:
        yield "PATH at login", facts.login_path
    memory = "unknown" if facts.memory_bytes is None else format_bytes(facts.memory_bytes)
    yield "cpus, memory", f"{facts.cpus if facts.cpus is not None else 'unknown'}, {memory}"
    if held := _describe_control_groups(facts):
        yield "of which", f"{held} by control groups"
    if facts.slurm is None:
        yield "cards", "\n".join(_describe_card(card) for card in facts.cards[:MOST_CARDS]) or "none"
    if facts.driver is not None:
        yield "driver", facts.driver
    yield "disks", "\n".join(_describe_disk(disk, facts) for disk in facts.disks[:MOST_DISKS]) or "unknown"
    if facts.profile_disks:
        yield "of its profile", "\n".join(_describe_disk(disk, facts) for disk in facts.profile_disks[:MOST_DISKS])
    yield "locks", {"taken": "kept by the file system of the runs root"}.get(facts.flock, facts.flock or "unknown")
    yield "pidfds", facts.pidfd or "unknown"
    yield "containment", facts.containment or "unknown"
    limits = (f"{name} {'unlimited' if value is None else value}" for name, value in sorted(facts.limits.items()))
    yield "limits", ", ".join(limits) or "unknown"
    missing = [name for name in LOOKED_FOR if name not in facts.tools]
    yield "tools", ", ".join(sorted(facts.tools)) + (f" (not there: {', '.join(missing)})" if missing else "")
    yield "clock", _describe_clock(facts.clock_ahead_s)
    if facts.slurm is not None:
        yield from _describe_slurm(facts.slurm)


def _describe_slurm(slurm: SlurmFacts) -> Iterator[tuple[str, object]]:
    yield "Slurm", f"{slurm.version}, cluster {slurm.cluster}, {_describe_nodes(slurm)}"
    requeue = "started again after a preemption or a lost node" if slurm.requeue else "not started again by themselves"
    sacct = "sacct answers" if slurm.accounting else "no sacct, which is not needed"
    warned = slurm.preempt_warned and any(partition.grace_s for partition in slurm.partitions)
    gives = "; a preemption is warned of" if warned else ", which is all that a preemption gives"
    yield "its jobs", f"{requeue}; KILL comes {slurm.kill_wait_s:g} s after TERM{gives}; {sacct}"
    partitions = (_describe_partition(one, warned=warned) for one in slurm.partitions[:MOST_PARTITIONS])
    yield "partitions", "\n".join(partitions) or "none"


def _describe_nodes(slurm: SlurmFacts) -> str:
    cards = ", ".join(f"{count} {kind or 'cards'}".strip() for kind, count in slurm.cards.items())
    return f"{format_count(slurm.nodes, 'node')}, {f'at most {cards} on one' if cards else 'no cards'}"


def _describe_partition(partition: PartitionFacts, *, warned: bool) -> str:
    longest = "no time limit" if partition.max_time_s is None else f"at most {format_duration(partition.max_time_s)}"
    nodes = "? nodes" if partition.nodes is None else format_count(partition.nodes, "node")
    words = [longest, nodes, f"preempted jobs: {partition.preempt_mode.lower() or 'unknown'}"]
    if partition.grace_s:
        # Source: docs/slurm.md, measured with 22.05.8: the batch process hears of it at its end only.
        told = "and a preempted job is warned at its beginning" if warned else "of which only steps are told"
        words.append(f"GraceTime {format_duration(partition.grace_s)}, {told}")
    name = f"{partition.name} (default)" if partition.default else partition.name
    return f"{name}: {', '.join(words)}" + ("" if partition.state in ("UP", "") else f", {partition.state}")


def _describe_clock(ahead_s: float | None) -> str:
    if ahead_s is None:
        return "not compared"
    if abs(ahead_s) < 1:
        return "as here"
    return f"{format_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} this machine's"


def _describe_control_groups(facts: BoxFacts) -> str:
    memory = "" if facts.memory_limit_bytes is None else f"{format_bytes(facts.memory_limit_bytes)} of memory"
    cpus = "" if facts.cpu_limit is None else f"{facts.cpu_limit:g} cpus"
    tasks = "" if facts.task_limit is None else format_count(facts.task_limit, "task")
    return ", ".join(filter(None, (cpus, memory, tasks)))


def _describe_card(card: CardFacts) -> str:
    memory = "" if card.memory_bytes is None else f", {format_bytes(card.memory_bytes)}"
    return f"{card.index}: {card.name}{memory}{' (simulated)' if card.simulated else ''}"


def _describe_disk(disk: DiskFacts, facts: BoxFacts) -> str:
    path = _shorten(disk.path, facts)
    if disk.type == MISSING:
        return f"{path}: not there"
    if disk.type == UNREADABLE:
        return f"{path}: cannot be looked at"
    if disk.free_bytes is None or disk.total_bytes is None:
        return f"{path}: {disk.type}, size unknown"
    inodes = "" if disk.free_inodes is None else f", {_count(disk.free_inodes)} inodes free"
    closed = "" if disk.writable is not False else ", not writable"
    sizes = f"{format_bytes(disk.free_bytes)} of {format_bytes(disk.total_bytes)} free"
    return f"{path}: {disk.type}, {sizes}{inodes}{closed}"


def _count(number: int) -> str:
    """A large number, rounded down: ``15.9 million``."""
    return str(number) if number < 1_000_000 else f"{number // 100_000 / 10:g} million"


def _describe_host(place: Place) -> str:
    if place.host is None:
        return "this machine"
    return place.host + (f" port {place.port}" if place.port is not None else "")


def _describe_age(at: str) -> str:
    age_s = find_age(at)
    return "at an unknown time" if age_s is None else f"{format_duration(age_s)} ago"


def print_added(place: Place, path: str, *, is_new: bool) -> None:
    """What was configured, and where."""
    print(
        f"{place.name}: {_describe_host(place)}, {'written to' if is_new else 'as it is already in'} {path}", flush=True
    )


def describe_problem(problem: HoldfastError) -> str:
    """Why a place that was configured cannot be used now, and what to do about it."""
    words = f"it is configured, but could not be measured: {problem}"
    return f"{words}\n  {problem.hint}" if problem.hint else words


def print_next(place: Place, facts: BoxFacts | None, problem: HoldfastError | None) -> None:
    """What was found in a line, and the commands that come next."""
    if facts is not None:
        for words in list_warnings(facts, place)[:MOST_WARNINGS]:
            note(f"warning: {words}")
        found = format_count(len(facts.cards), "card")
        if facts.slurm is not None:
            found = f"Slurm {facts.slurm.version} with {_describe_nodes(facts.slurm)}"
        print(clean(f"measured: Python {facts.python_version}, {found}, runs in {facts.root}"))
    commands = [(f"holdfast place probe {place.name}", "measure it" if facts is None else "all that was measured")]
    if problem is None:
        commands.append((f"holdfast run --on {place.name} job.yaml", "run a job there"))
        commands.append((f"holdfast ls --on {place.name}", "list the runs there"))
    else:
        named = f"holdfast place add {place.name} USER@HOST --replace"
        commands.append((named, "where it was written wrongly"))
    if problem is not None and problem.details.get("why") == "host_key_unknown":
        commands.insert(0, (f"holdfast place trust {place.name}", "look at its host key, and record it"))
    print("next:")
    pairs(commands, indent=2)


def print_host_keys(name: str, found: HostKeys) -> None:
    """What a place offers beside what is recorded of it."""
    print(f"{name} ({found.address}), which ssh looks up as {found.name}")
    recorded = {known.key for known in found.recorded if not known.marker}
    rows: list[tuple[object, ...]] = [
        ("offered", key.type, key.fingerprint, "as recorded" if key in recorded else "not recorded")
        for key in found.offered
    ]
    for known in found.recorded:
        word = "by a pattern" if known.is_pattern else ""
        where = f"{known.path} line {known.line}"
        same = "" if known.marker or known.key in found.offered else "another key"
        rows.append((known.marker or "recorded", known.key.type, known.key.fingerprint, _join(same, word, where)))
    table(("", "type", "fingerprint", "remark"), rows)
    if found.has_changed:
        note(
            "the key has CHANGED: the machine was set up anew, or another one answers and can read all that is sent; "
            "ask who runs it"
        )


def _join(*words: str) -> str:
    return ", ".join(word for word in words if word)
