"""What of a run's declared scratch may go, and what stays whatever was declared (STOR-03, STOR-04). Pure.

Scratch is declared as patterns, relative to the run directory and to the working directory. Even a declared pattern
does not take: holdfast's own records and checkpoints, declared inputs and results, metrics, checkpoints named best or
last, the newest whole checkpoint of each series, what somebody has open, what another account owns, and, in the
working directory, what did not change while the run was alive.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum
from fnmatch import fnmatchcase

from holdfast.model.pattern import compile_later
from holdfast.model.record import field, record

_METRICS = compile_later(
    r"(^|[._-])(metrics?|history|results?|scores?|losses)([._-]|$)|^events\.out\.tfevents\.", re.IGNORECASE
)
_CHOSEN = compile_later(r"(^|[^a-z])(best|last|latest|final|resume)([^a-z]|$)", re.IGNORECASE)
_CHECKPOINT_ENDS = (".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".msgpack", ".h5", ".keras", ".distcp", ".bin")
_CHECKPOINT_WORD = compile_later(r"(ckpt|checkpoint|global_?step|epoch|(^|[^a-z])step|(^|[^a-z])iter)", re.IGNORECASE)
_NUMBER = compile_later(r"(?P<word>[A-Za-z]*)[-_=.]?(?P<number>\d+)")
_PARTS = frozenset({"rank", "shard", "part", "mp", "pp", "tp", "dp", "of", "worker", "node", "gpu"})
"""Words before a number that counts the pieces of one checkpoint, not the checkpoints."""
_FIGURES = frozenset({"loss", "acc", "accuracy", "score", "val", "f", "lr", "time", "bleu", "ppl", "miou", "map"})
"""Words before a number that is a measurement: it differs from step to step of one series."""


class ScratchRoot(str, Enum):
    """Which of the two directories a path counts from."""

    RUN = "run"
    WORKDIR = "workdir"


class KeepReason(str, Enum):
    """Why something that a pattern names is kept."""

    RECORD = "a record of the run"
    DECLARED = "declared by the job as input or result"
    METRICS = "metrics"
    CHOSEN = "named best, last or final"
    NEWEST = "the newest whole checkpoint of its series"
    UNCLEAR = "looks like a checkpoint, and which is the newest cannot be told"
    UNPROVEN = "no checkpoint of its series is proven to be whole"
    OPEN = "open in a process"
    FOREIGN = "belongs to another account"
    OLDER = "did not change while the run was alive"
    SPECIAL = "no regular file"
    PART = "part of a checkpoint, which goes or stays as a whole"
    LINKED = "a link that is named best, last or final leads to it"


@record
class ScratchItem:
    """One removable thing that a pattern names: a file, or a checkpoint's directory as a whole.

    `path` is relative to its root. `size_bytes` is what the disk would get back (blocks), `files` how many files.
    `mtime_ns` is the newest change in it, `device` and `inode` its identity. `whole` is None where the format cannot
    be judged. `held` is why the walk says that it stays, None when nothing speaks against removing it. `parts` are the
    files of a directory by name, numbers left out, and how many there are of each.
    """

    root: ScratchRoot
    path: str
    size_bytes: int
    files: int
    mtime_ns: int
    device: int
    inode: int
    is_directory: bool = False
    whole: bool | None = None
    held: KeepReason | None = None
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@record
class KeptItem:
    """Something that a pattern names and that stays, and why."""

    item: ScratchItem
    why: KeepReason


@record
class ScratchPlan:
    """What would go, the largest first, and what stays although it was named."""

    victims: tuple[ScratchItem, ...] = ()
    kept: tuple[KeptItem, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the disks would get back."""
        return sum(item.size_bytes for item in self.victims)

    @property
    def files(self) -> int:
        """Files that would go, which is also how many inodes would become free."""
        return sum(item.files for item in self.victims)


def find_pattern_problem(pattern: str) -> str:
    """Why this is no pattern for scratch; empty when it is one. ``**`` stands for any number of directories."""
    if pattern.startswith(("/", "~")):
        return "is not relative; scratch lies below the run directory or the working directory"
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts or "\0" in pattern:
        return "names nothing"
    if ".." in parts:
        return "leaves its directory"
    if any("**" in part and part != "**" for part in parts):
        return "has ** beside other letters; write it as a whole part, like tmp/**/*.part"
    if not any(re.search(r"[A-Za-z0-9]", re.sub(r"\[[^\]]*\]", "", part)) for part in parts):
        return "names everything; begin with a name, like tmp/**"
    return ""


def matches(path: str, pattern: str) -> bool:
    """Whether a relative path, or a directory above it, is named by a pattern.

    ``*`` and ``?`` stay within one part; a name that begins with a dot is matched like any other.
    """
    wanted = [part for part in pattern.split("/") if part not in ("", ".")]
    # All places of the pattern that are reached at once: trying one after the other grows with every **.
    reached = _skip_any({0}, wanted)
    for part in path.split("/"):
        following: set[int] = set()
        for place in reached:
            any_number = wanted[place] == "**"
            if any_number or fnmatchcase(part, wanted[place]):
                if place + 1 == len(wanted):
                    return True  # all of it was used: the path is that directory, or lies in it
                following.add(place if any_number else place + 1)
        reached = _skip_any(following, wanted)
    return False


def _skip_any(places: set[int], wanted: list[str]) -> set[int]:
    """The places with those behind each ``**`` that stands for no directory; at the end it stands for one at least."""
    found = set(places)
    for place in places:
        current = place
        while wanted[current] == "**" and current + 1 < len(wanted):
            current += 1
            found.add(current)
    return found


def may_lead(directory: str, pattern: str) -> bool:
    """Whether something below this relative directory could be named by a pattern: whether to walk into it."""
    wanted = [part for part in pattern.split("/") if part not in ("", ".")]
    for part in directory.split("/"):
        if not wanted or wanted[0] == "**":
            return True
        if not fnmatchcase(part, wanted[0]):
            return False
        wanted = wanted[1:]
    return True


def is_checkpoint(name: str) -> bool:
    """Whether a name looks like a checkpoint's: by its ending, or by a word for it with a number."""
    return name.lower().endswith(_CHECKPOINT_ENDS) or bool(
        _CHECKPOINT_WORD.search(name) and _NUMBER.search(name) and "." not in name.strip(".")
    )


def read_step(name: str) -> int | None:
    """The step, epoch or iteration in a checkpoint's name; None when no number is one for certain."""
    found = [(match["word"].lower(), int(match["number"])) for match in _NUMBER.finditer(name)]
    for word, number in found:
        if _CHECKPOINT_WORD.search(word) or word in ("s", "e", "ep"):
            return number
    plain = [number for word, number in found if word not in _PARTS]
    return plain[0] if len(plain) == 1 and len(found) == 1 else None


def read_kind(name: str) -> str:
    """What kind of piece a checkpoint's file is: its name without its step, counts of pieces and measurements.

    Two files of one kind replace each other from step to step; an optimizer's never replaces a model's, nor one fold's
    another's.
    """
    only = len(_NUMBER.findall(name)) == 1

    def blank(match: re.Match[str]) -> str:
        word = match["word"].lower()
        varies = only or not word or word in _PARTS or word in _FIGURES or _CHECKPOINT_WORD.search(word)
        decimal = re.match(r"\.\d", name[match.end() :])
        return f"{match['word']}#" if varies or decimal or word in ("s", "e", "ep") else match[0]

    return _NUMBER.sub(blank, name)


def count_parts(paths: list[str]) -> dict[str, int]:
    """The files of one checkpoint's directory by name, numbers left out, with how many there are of each."""
    return dict(Counter(re.sub(r"\d+", "#", path) for path in paths))


def is_chosen(name: str) -> bool:
    """Whether a name says that somebody chose this one: best, last, latest, final, resume."""
    return _CHOSEN.search(name) is not None


def plan_pruning(items: tuple[ScratchItem, ...]) -> ScratchPlan:
    """Choose what goes. Items that a pattern named, each once."""
    kept: list[KeptItem] = []
    open_to: list[ScratchItem] = []
    series: dict[tuple[ScratchRoot, str], list[ScratchItem]] = {}
    for item in items:
        why = item.held or _judge_name(item)
        if why is not None:
            kept.append(KeptItem(item, why))
        elif is_checkpoint(item.name):
            series.setdefault((item.root, item.path.rpartition("/")[0]), []).append(item)
        else:
            open_to.append(item)
    for members in series.values():
        gone, stays = _choose(members)
        open_to += gone
        kept += stays
    order = sorted(open_to, key=lambda item: (-item.size_bytes, item.path))
    return ScratchPlan(tuple(order), tuple(kept))


def _judge_name(item: ScratchItem) -> KeepReason | None:
    if _CHOSEN.search(item.name):
        return KeepReason.CHOSEN
    return KeepReason.METRICS if _METRICS.search(item.name) and not is_checkpoint(item.name) else None


def _choose(members: list[ScratchItem]) -> tuple[list[ScratchItem], list[KeptItem]]:
    """The checkpoints of one directory: what stays is the newest step that is whole, and all without a step.

    A write that broke off may have left whole files of a step and not all of them (the model, and no optimizer). So an
    older whole step stays too when it has a kind of piece, or more of a kind, than the newer ones that stay.
    """
    steps: dict[int, list[ScratchItem]] = {}
    kept: list[KeptItem] = []
    for item in members:
        step = read_step(item.name)
        if step is None:
            kept.append(KeptItem(item, KeepReason.UNCLEAR))
        else:
            steps.setdefault(step, []).append(item)
    covered: dict[str, int] = {}
    for step in sorted((step for step, pieces in steps.items() if all(p.whole is True for p in pieces)), reverse=True):
        counts: Counter[str] = Counter()
        for item in steps[step]:
            counts.update(_count_kinds(item))
        if any(number > covered.get(kind, 0) for kind, number in counts.items()):
            kept += [KeptItem(item, KeepReason.NEWEST) for item in steps.pop(step)]
            covered = {kind: max(counts[kind], covered.get(kind, 0)) for kind in {*counts, *covered}}
    gone = []
    for item in (item for pieces in steps.values() for item in pieces):
        if all(kind in covered for kind in _count_kinds(item)):
            gone.append(item)
        else:
            kept.append(KeptItem(item, KeepReason.UNPROVEN))
    return gone, kept


def _count_kinds(item: ScratchItem) -> dict[str, int]:
    kind = read_kind(item.name)
    return {f"{kind}/{part}": number for part, number in item.parts.items()} or {kind: 1}
