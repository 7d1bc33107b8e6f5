"""Every verb of the command line: who carries it out, and at which side each of its parameters means something.

The router reads a command line by this table before any verb is imported: it says which options take a value, and which
words name a RUN. `tests/desk/route/test_table.py` holds it against the command line itself, parameter by parameter;
docs/places.md has it as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from holdfast.model.record import field, record


class Kind(str, Enum):
    """Who carries a verb out.

    A routed verb is sent to its place as it was typed. An ordered one is read at the desk and carried out there. A
    merged one asks all places, and is sent like a routed one where a place is named. A desk verb never leaves the desk.
    """

    ROUTED = "routed"
    ORDERED = "ordered"
    MERGED = "merged"
    DESK = "desk"


class Side(str, Enum):
    """Where a parameter means something.

    `RUN` names a run, and so perhaps a place; `JOB` a job or a group of a queue, and a place where it says one;
    `BESIDE` another run at the place of the first, or any word of the box. What is `BOX` is read where the verb is
    carried out: numbers and words, and paths there. `DESK_IN` is a file that is read at the desk, `DESK_OUT` one that
    is written there.
    """

    RUN = "run"
    JOB = "job"
    BESIDE = "beside"
    BOX = "box"
    DESK_IN = "desk_in"
    DESK_OUT = "desk_out"


@record
class Verb:
    """One verb. `arguments` are name and side in their order; with `many` the last one takes any number of words.

    `flags` and `options` have every spelling; `options` are those that take a value. `command` says that what stands
    behind ``--`` is a job's command. `own_on`: the verb reads ``--on`` itself. `why` says of a desk verb why it has no
    place.
    """

    kind: Kind
    arguments: tuple[tuple[str, Side], ...] = ()
    many: bool = False
    flags: frozenset[str] = frozenset()
    options: dict[str, Side] = field(default_factory=dict)
    command: bool = False
    why: str = ""
    own_on: bool = False

    @property
    def takes_place(self) -> bool:
        """Whether ``--on PLACE`` makes sense."""
        return self.kind is not Kind.DESK


JOB_FLAGS = (
    "--share --no-share --gpu-verify --no-gpu-verify --login-shell --no-login-shell --pty --no-pty "
    "--allow-install --no-allow-install --skip-smoke --no-skip-smoke --container-init --no-container-init "
    "--moving-tag --no-moving-tag --results-prune-scratch --no-results-prune-scratch"
)
NOTIFY_OPTIONS = (
    "--notify-command --notify-webhook --notify-slack --notify-discord --notify-ntfy --notify-email "
    "--notify-email-from --notify-smtp --notify-smtp-user --notify-smtp-password --notify-smtp-tls --notify-every "
    "--notify-on"
)
JOB_OPTIONS = (
    "--name --workdir --env --secret --setup --smoke --seed --priority --gpus --nodes --min-free --wait "
    "--gpu-memory --max-hold --idle-window "
    "--gpu-memory-share --timeout --timeout-preflight --timeout-run --timeout-postflight --grace --grace-max "
    "--expected --retries --retry-wait --retry-out-of-memory --stall-no-progress --stall-no-output --stall-startup "
    "--stall-action --limit-memory --limit-memory-high --limit-swap --limit-cpus --limit-cpu-weight "
    "--limit-affinity --limit-tasks --limit-open-files --limit-unenforced --containment --on-supervisor-death "
    "--input --config --data --artifact --results-to --results-path --results-tries --results-wait --disk-min-free "
    "--disk-min-free-inodes --checkpoint-size --checkpoint-keep "
    "--disk-path --expected-files --scratch --caches --checkpoint-every --keep-last --checkpoint-mirror "
    "--interruptions --output-max --health-every --tracker --threads --image --runtime --bind --shm "
    f"--container-user --entrypoint --network --pass-env --ptrace {NOTIFY_OPTIONS} --slurm"
)
"""The options that a job has (`cli.job.options`). Paths in them mean the box, or the code that is pushed there."""
LIMIT_OPTIONS = (
    "--priority --max-hold --timeout --timeout-run "
    "--memory --memory-high --swap --cpus --cpu-weight --affinity --tasks "
    "--limit-memory --limit-memory-high --limit-swap --limit-cpus --limit-cpu-weight --limit-affinity --limit-tasks"
)


def _verb(  # noqa: PLR0913 - one keyword a column
    kind: Kind,
    arguments: str = "",
    *,
    flags: str = "",
    options: str = "",
    desk_in: str = "",
    desk_out: str = "",
    job: bool = False,
    command: bool = False,
    why: str = "",
    own_on: bool = False,
) -> Verb:
    """A row. `arguments` is ``name:side ...``, with ``...`` behind a last one that takes many words."""
    given = [word.removesuffix("...").split(":") for word in arguments.split()]
    sides = dict.fromkeys(options.split(), Side.BOX)
    if job:
        sides.update(dict.fromkeys(JOB_OPTIONS.split(), Side.BOX))
    sides.update(dict.fromkeys(desk_in.split(), Side.DESK_IN))
    sides.update(dict.fromkeys(desk_out.split(), Side.DESK_OUT))
    return Verb(
        kind,
        tuple((name, Side(side)) for name, side in given),
        arguments.endswith("..."),
        frozenset(f"{flags} {JOB_FLAGS}".split() if job else flags.split()),
        sides,
        job or command,
        why,
        own_on,
    )


def _without(verb: Verb, names: str) -> Verb:
    """The verb without these of the job's options."""
    left = {name: side for name, side in verb.options.items() if name not in names.split()}
    return Verb(verb.kind, verb.arguments, verb.many, verb.flags, left, verb.command, verb.why, verb.own_on)


ROUTED, ORDERED, MERGED, DESK = Kind.ROUTED, Kind.ORDERED, Kind.MERGED, Kind.DESK
_PLACES = "places are this desk's own; name the place behind the verb"
_DEFAULTS = "the file of defaults is read where a job is typed; a place has its own for what is typed there"
_PROFILES = "profiles are this desk's own; a place names one in places.toml"
_LISTS = "it only lists its verbs"

_ROWS: dict[str, Callable[[], Verb]] = {
    "run": lambda: _verb(
        ORDERED,
        "job:desk_in",
        flags="-d --detach --no-code --dry-run --json",
        options="--prove --runs --run-id --like",
        desk_in="--env-file",
        job=True,
        own_on=True,
    ),
    "submit": lambda: _without(
        _verb(
            ORDERED,
            "job:desk_in",
            flags="--paused --no-code --wait --dry-run --json",
            options="--group --after --not-before --max-parallel --if-changed --hold-after --claims --shared --runs",
            desk_in="--lines --env-file",
            job=True,
            own_on=True,
        ),
        "--wait",
    ),
    "queue": lambda: _verb(ROUTED, flags="--json"),
    "queue accept": lambda: _verb(ROUTED, "names:job...", flags="--json", options="--reason"),
    "queue cancel": lambda: _verb(ROUTED, "names:job...", flags="--running --now -y --yes --json"),
    "queue check": lambda: _verb(ROUTED, "group:job", flags="--deep --json"),
    "queue clear": lambda: _verb(ROUTED, "groups:job...", flags="-y --yes --dry-run --json"),
    "queue drain": lambda: _verb(ROUTED, flags="--wait --json"),
    "queue edit": lambda: _verb(
        ROUTED, "name:job", flags="--json", options="--priority --not-before --max-parallel --hold-after"
    ),
    "queue install": lambda: _verb(ROUTED, flags="--cron --systemd -y --yes --json"),
    "queue ls": lambda: _verb(ROUTED, "group:job", flags="--all --json", options="--state"),
    "queue move": lambda: _verb(ROUTED, "name:job", flags="--first --last --json", options="--before"),
    "queue pause": lambda: _verb(ROUTED, "names:job...", flags="--json", options="--reason"),
    "queue resume": lambda: _verb(ROUTED, "names:job...", flags="--accept-changes --with-environment --json"),
    "queue retry": lambda: _verb(ROUTED, "names:job...", flags="--failed --json", options="--from"),
    "queue set": lambda: _verb(ROUTED, flags="--json", options="--cpu-slots"),
    "queue show": lambda: _verb(ROUTED, "name:job", flags="--json"),
    "queue uninstall": lambda: _verb(ROUTED, flags="-y --yes --json"),
    "queue work": lambda: _verb(ROUTED, flags="--boot"),
    "sweep": lambda: _verb(DESK, why=_LISTS),
    "sweep add": lambda: _verb(
        ROUTED, "name:job", flags="--accept-changes --dry-run --json", options="--grid --runs", desk_in="--jobs"
    ),
    "sweep check": lambda: _verb(ROUTED, "name:job", flags="--deep --json"),
    "sweep export": lambda: _verb(ROUTED, "name:job file:desk_out", flags="--overwrite"),
    "sweep retry": lambda: _verb(ROUTED, "name:job", flags="-a --all --dry-run --json"),
    "sweep show": lambda: _verb(ROUTED, "name:job", flags="--csv --json", options="--sort --metrics"),
    "sweep submit": lambda: _without(
        _verb(
            ORDERED,
            "source:desk_in",
            flags="--strict --paused --no-code --wait --dry-run --json",
            options="--grid --set --arguments --shared --after --not-before --max-parallel --hold-after --if-changed "
            "--claims --runs",
            desk_in="--csv",
            job=True,
            own_on=True,
        ),
        "--wait",
    ),
    "wait": lambda: _verb(MERGED, "names:run...", flags="--all -q --quiet --json", options="--timeout"),
    "ls": lambda: _verb(
        MERGED,
        "names:box...",
        flags="-a --all --all-users --here --json",
        options="-n --limit -s --state --since --until --using --runs",
    ),
    "show": lambda: _verb(
        ROUTED, "run:run", flags="--diff --env --events --json", options="--against --attempt --runs"
    ),
    "diagnose": lambda: _verb(
        ROUTED, "run:run", flags="--deep --share --json", options="--pid --attempt --runs", desk_out="--bundle"
    ),
    "logs": lambda: _verb(
        ROUTED,
        "names:run...",
        flags="-f --follow --supervisor --events --json",
        options="-n --lines --grep --node --attempt --runs",
    ),
    "metrics": lambda: _verb(
        ROUTED, "run:run words:beside...", flags="-f --follow --json", options="-n --lines --attempt --runs"
    ),
    "attach": lambda: _verb(ROUTED, "run:run", flags="--json", options="-n --lines --runs"),
    "stop": lambda: _verb(ROUTED, "names:run...", flags="--now -y --yes --json", options="--reason --wait --runs"),
    "checkpoint": lambda: _verb(ROUTED, "run:run", flags="--no-wait --json", options="--wait --reason --runs"),
    "checkpoints": lambda: _verb(DESK, why=_LISTS),
    "exec": lambda: _verb(ROUTED, "run:run", options="--runs", command=True),
    "shell": lambda: _verb(ROUTED, "run:run", options="--runs"),
    "files": lambda: _verb(ROUTED, "run:run path:box", flags="--json", options="--runs"),
    "cp": lambda: _verb(
        DESK, "source:box target:desk_out", flags="--force --json", why="the run stands in its first word"
    ),
    "push": lambda: _verb(
        DESK,
        "place:box paths:desk_in...",
        flags="--dry-run --json",
        why="its first word names the place",
    ),
    "pull": lambda: _verb(
        DESK,
        "runs:box...",
        flags="--verify --dry-run --json",
        options="--only --without --accept",
        why="the run stands in its first word",
    ),
    "checkpoints export": lambda: _verb(
        ROUTED,
        "place:run out:desk_out",
        flags="--overwrite --json",
        options="--format --name --rank --step --runs",
    ),
    "checkpoints ls": lambda: _verb(ROUTED, "place:run", flags="--json", options="--metric --runs"),
    "checkpoints prune": lambda: _verb(
        ROUTED,
        "place:run",
        flags="--set-aside --leftovers --live -y --yes --json",
        options="--keep-last --keep-best --metric --runs",
    ),
    "checkpoints show": lambda: _verb(ROUTED, "place:run", flags="-a --all --json", options="--step --rank --runs"),
    "checkpoints verify": lambda: _verb(ROUTED, "place:run", flags="-a --all --json", options="--runs"),
    "results": lambda: _verb(DESK, why=_LISTS),
    "results collect": lambda: _verb(ROUTED, "names:run...", flags="--json", options="--to"),
    "results copy": lambda: _verb(ROUTED, "name:run", flags="--json", options="--to --runs"),
    "results shard": lambda: _verb(ROUTED, "directory:box out:box", flags="--json", options="--size"),
    "drill": lambda: _verb(
        ORDERED,
        "job:desk_in",
        flags="--stop --inexact --no-code --json",
        options="--kills --drill-seed --time --until --keep",
        job=True,
        own_on=True,
    ),
    "restart": lambda: _verb(
        ROUTED,
        "run:run",
        flags="-f --follow --recorded --no-code --dry-run -y --yes --json",
        options="--runs --gpu-wait",
        desk_in="--job --env-file",
        job=True,
    ),
    "limit": lambda: _verb(
        ROUTED,
        "run:run",
        flags="--force --dry-run --json",
        options=f"--wait --runs {LIMIT_OPTIONS}",
        command=True,
    ),
    "adopt": lambda: _verb(ROUTED, "run:run", flags="--json", options="--runs --gone"),
    "rm": lambda: _verb(ROUTED, "names:run...", flags="-y --yes --dry-run --json", options="-s --state --older --runs"),
    "prune": lambda: _verb(ROUTED, "name:run", flags="-y --yes --dry-run --json", options="--also --runs"),
    "config": lambda: _verb(DESK, why=_DEFAULTS),
    "config get": lambda: _verb(DESK, "key:box", why=_DEFAULTS),
    "config ls": lambda: _verb(DESK, flags="--json", why=_DEFAULTS),
    "config path": lambda: _verb(DESK, why=_DEFAULTS),
    "config set": lambda: _verb(DESK, "key:box values:box...", why=_DEFAULTS),
    "config unset": lambda: _verb(DESK, "key:box", why=_DEFAULTS),
    "notify": lambda: _verb(DESK, why=_LISTS),
    "notify test": lambda: _verb(ORDERED, "job:desk_in", flags="--json", options=NOTIFY_OPTIONS, own_on=True),
    "patrol": lambda: _verb(
        MERGED, flags="--here --since-last -a --all --notify --json", options="--runs --notify-command"
    ),
    "patrol install": lambda: _verb(
        ROUTED, flags="--cron --systemd -y --yes --json", options="--every --notify-command"
    ),
    "patrol uninstall": lambda: _verb(ROUTED, flags="-y --yes --json"),
    "sentinel": lambda: _verb(
        ROUTED, "run:run", flags="-d --detach --json", options="--for --max --notify-command --runs"
    ),
    "reconcile": lambda: _verb(ROUTED, "place:box", flags="--dry-run --json", options="--runs"),
    "handbook": lambda: _verb(ROUTED, "run:run", flags="--json", options="--runs"),
    "gpus": lambda: _verb(ROUTED, flags="--json"),
    "gpus clear": lambda: _verb(ROUTED, "card:box", flags="--json", options="--reason"),
    "gpus health": lambda: _verb(ROUTED, "cards:box...", flags="--watch-free --json", options="--for"),
    "gpus idle": lambda: _verb(ROUTED, flags="--json", options="--min --for"),
    "gpus quarantine": lambda: _verb(ROUTED, "card:box", flags="--json", options="--reason"),
    "gpus release": lambda: _verb(ROUTED, "run:run", flags="--force --json", options="--reason"),
    "gpus reservations": lambda: _verb(ROUTED, flags="--json"),
    "gpus reserve": lambda: _verb(ROUTED, flags="--json", options="--cards --gpus --from --for --reason"),
    "gpus reset-request": lambda: _verb(ROUTED, "index:box", flags="--json"),
    "gpus unreserve": lambda: _verb(ROUTED, "name:box", flags="--json"),
    "gpus usage": lambda: _verb(ROUTED, flags="--week --json", options="--since --user"),
    "place": lambda: _verb(DESK, flags="--json", why=_PLACES),
    "place add": lambda: _verb(
        DESK,
        "name:box host:box",
        flags="--replace --probe --no-probe --yes --json",
        options="--kind --port --root --python --setup --env-from --slurm --profile",
        why=_PLACES,
    ),
    "place login": lambda: _verb(DESK, "name:box", why=_PLACES),
    "place ls": lambda: _verb(DESK, flags="--probe --json", why=_PLACES),
    "place probe": lambda: _verb(DESK, "name:box", flags="--json", why=_PLACES),
    "place rm": lambda: _verb(DESK, "name:box", flags="--forget-runs --json", why=_PLACES),
    "place show": lambda: _verb(DESK, "name:box", flags="--json", why=_PLACES),
    "place trust": lambda: _verb(DESK, "name:box", flags="--json", options="--yes-fingerprint", why=_PLACES),
    "profile": lambda: _verb(DESK, flags="--json", why=_PROFILES),
    "profile check": lambda: _verb(DESK, "names:box...", flags="--strict --json", why=_PROFILES),
    "profile ls": lambda: _verb(DESK, flags="--json", why=_PROFILES),
    "profile probe": lambda: _verb(DESK, "name:box", flags="--replace --json", options="--name", why=_PLACES),
    "profile show": lambda: _verb(DESK, "name:box", flags="--json", why=_PROFILES),
    "profile verify": lambda: _verb(
        DESK, "name:box facts:box...", flags="--yes --json", options="--source", why=_PROFILES
    ),
    "profile survives": lambda: _verb(DESK, "name:box path:box act:box", flags="--json", why=_PROFILES),
    "secret": lambda: _verb(DESK, why=_PLACES),
    "secret check": lambda: _verb(DESK, "place:box name:box", options="--url", why=_PLACES),
    "secret ls": lambda: _verb(DESK, "place:box", flags="--json", why=_PLACES),
    "secret push": lambda: _verb(DESK, "place:box name:box", flags="--netrc", options="--from-env", why=_PLACES),
    "secret rm": lambda: _verb(DESK, "place:box name:box", why=_PLACES),
    "doctor": lambda: _verb(ROUTED, flags="--network --reap -y --yes --json", options="--python --grace --runs"),
    "preflight": lambda: _verb(ORDERED, "job:desk_in", flags="--strict --no-code --json", job=True, own_on=True),
    "tunnel": lambda: _verb(DESK, "place:box ports:box...", flags="--json", why="its first word names the place"),
    "teardown": lambda: _verb(
        DESK,
        "place:box",
        flags="--dry-run --check --json",
        options="--verb --leave --reason --verified --approve --wait",
        desk_in="--code",
        why="its first word names the place",
    ),
    "lifecycle": lambda: _verb(DESK, "place:box", flags="--json", why="its first word names the place"),
    "cost": lambda: _verb(
        DESK,
        "place:box",
        flags="--json",
        options="--pull --times --price --save-every --machines",
        why="its first word names the place",
    ),
    "rules": lambda: _verb(ROUTED, flags="--json"),
    "explain": lambda: _verb(
        DESK, "topic:box...", flags="--json", options="--search", why="what it explains is the same everywhere"
    ),
    "fault": lambda: _verb(DESK, why=_LISTS),
    "fault list": lambda: _verb(ROUTED, flags="--json", options="--nvml-library"),
    "fault run": lambda: _verb(ROUTED, "names:box...", flags="--all --quick --keep --json", options="--nvml-library"),
    "schema": lambda: _verb(DESK, flags="--json", why="job files have the same form everywhere"),
    "completion": lambda: _verb(DESK, "shell:box", flags="--json", why="it is for the shell that is typed in"),
}


class Rows(Mapping[str, Verb]):
    """The table; a row is made when it is asked for, so that a command pays for its own alone."""

    def __init__(self, rows: Mapping[str, Callable[[], Verb]]) -> None:
        """`rows` make them."""
        self._rows = rows
        self._made: dict[str, Verb] = {}

    def __getitem__(self, name: str) -> Verb:
        """The row of a verb.

        Raises:
            KeyError: there is no such verb.
        """
        if name not in self._made:
            self._made[name] = self._rows[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a verb; makes no row."""
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the help page."""
        return iter(self._rows)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)


VERBS = Rows(_ROWS)
"""Verb, with its sub-verb, to what holds for it. A group's own row is for the group without a sub-verb."""
