"""The command line once more, through a loopback place: what a desk prints is what the box prints.

A declared subset: every routed verb but those in `OUTSIDE`, each with its main options. Each line is typed twice, on
the box and at the desk, and standard output, standard error and exit code are the same, but for the place in commands
and for what `loopback.AGES` names. The text of the handbook is another page at a desk: its JSON is compared. Verbs that
change something act on one of a pair each.
"""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.route.hints import RUN, name_place
from holdfast.desk.route.table import VERBS, Kind
from tests.cli.placed.loopback import PLACE, Loopback, alike, end_pair
from tests.sshd import TIME_ZONE, Sshd, end_masters, skip_without_rights
from tests.training.directories import damage, make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.cli.conftest import Ended

pytestmark = [pytest.mark.cli, pytest.mark.slow, pytest.mark.timeout(1200)]

OUTSIDE = {
    "shell": "it is a person's terminal; tests/cli/test_exec.py",
    "queue work": "it is the worker itself, for a clock",
    "queue install": "it writes the account's crontab; tests/cli/test_queue_boot.py",
    "queue uninstall": "as above",
    "patrol install": "as above; tests/cli/test_patrol.py",
    "patrol uninstall": "as above",
    "fault run": "faults are for sandboxes; tests/faults",
    "reconcile": "with a place it is the desk's own",
    "sweep export": "its file is the desk's",
    "checkpoints export": "its file is the desk's",
    "results copy": "it writes a directory of the box; tests/cli/test_results.py",
    "results collect": "as above",
    "results shard": "as above",
}
"""Routed verbs that are not compared, and why."""

STATES = """
mkdir -p work && cd work
holdfast run --name good --artifact result.txt -- sh -c 'echo out; echo ü; echo warn >&2; echo r > result.txt'
holdfast run --name bad -- python3 -c 'import nosuchmodule'
holdfast run --name killed -- sh -c 'kill -9 $$'
holdfast run --name refused --gpus 7 -- true
holdfast run -d --name halted -- sleep 1000
holdfast stop --reason 'enough of it' halted
holdfast run --name trained -- true
for pair in act-1 act-2; do
    holdfast run -d --name $pair -- sh -c 'echo ready; while :; do sleep 0.5; done'
    holdfast submit --paused --group queue-${pair#act-} --name first -- true
    holdfast submit --paused --group queue-${pair#act-} --name second -- true
done
holdfast run -d --name live --gpus 1 --health-every 0 -- sh -c 'echo ready; echo "$HOME"; while :; do sleep 1; done'
holdfast sweep --name grid --grid lr=1,2 --wait -- sh -c 'exit 0'
holdfast submit --name broken --wait -- sh -c 'exit 6'
"""

LOOKS = """
show @good | show @good --json | show @good --env | show @good --events | show @bad | show @killed | show @refused
show @halted | show @live | show @live --json | show @trained --attempt 1 | show @good --diff
logs @good | logs @good --json | logs -n 1 @good | logs @bad | logs @good --supervisor | logs @good --events
logs -f @bad | logs -n 2 @live | logs @refused
attach @good | attach @bad | attach @killed | attach @halted | attach @bad --json | attach -n 1 @good
diagnose @bad | diagnose @bad --json | diagnose @killed | diagnose @good | diagnose @refused
files @good | files @good artifacts | files @good --json | files @live attempts/1
exec @good -- sh -c 'pwd; echo $HOME; echo oops >&2; exit 9' | exec @live -- printenv CUDA_VISIBLE_DEVICES
handbook @good --json
checkpoints ls @trained | checkpoints ls @trained --json | checkpoints show @trained --step 2
checkpoints show @trained
checkpoints show @trained --all --json | checkpoints verify @trained | checkpoints verify @trained --all
checkpoints verify --json @trained | checkpoints prune @trained --keep-last 1 | checkpoints ls @good
sentinel @good | sentinel @good --for ended --max 5s | sentinel @bad --for artifact=artifacts/no --max 5s
sentinel @live --json
limit @live | limit @live --timeout 1h --dry-run | limit @live --dry-run --json | limit @good --timeout 1h
restart @good --dry-run | restart @bad --dry-run --json | restart @live --dry-run
adopt @live | adopt @good | adopt @good --json
rm --dry-run @good @bad | rm --dry-run --json @good | rm @live | prune @good | prune --dry-run --json @good
checkpoint @good | checkpoint --json @good | stop @good | stop @good --json | gpus release @good
""".replace("\n", " | ")
"""Lines that change nothing; ``@good`` is a run, ``gpu1:good`` at the desk."""

MORE_LOOKS = """
metrics @good | metrics @trained | metrics @trained --json | rules | rules --json
queue | queue --json | queue ls | queue ls --all | queue ls --json grid | queue ls --state failed
queue show grid/lr=1 | queue show broken --json | queue show queue-1/first | queue check grid | queue check --json grid
queue check --deep grid
sweep show grid | sweep show grid --json | sweep show grid --csv | sweep show grid --sort lr --metrics loss
sweep check grid | sweep check grid --deep --json | sweep add grid --grid lr=3 --dry-run
gpus | gpus --json | gpus idle | gpus idle --json --min 0 | gpus usage | gpus usage --week --json | gpus reservations
gpus health 0 | gpus health --json
doctor | doctor --json
fault list | fault list --json
""".replace("\n", " | ")
"""The same of the queue, the cards and the box."""

WRONG = """
show @nobody | show @nobody --json | show @good --attempt 7 | show @good --nonsense | show
logs @nobody | logs @good -n x | logs @good --attempt 9 --json | attach @nobody | attach @nobody --json
diagnose @nobody | diagnose @good --pid x | files @good nothing | files @good ../.. | files @good /etc --json
files @nobody
exec @nobody -- true | exec @good -- /no/such/program | exec @good
handbook @nobody | checkpoints ls @nobody | checkpoints verify @good | checkpoints show @trained --step 99 --json
checkpoints show @trained --step x
sentinel @good --for nonsense | sentinel @nobody --for ended | sentinel @live --for ended --max nonsense
limit @nobody --timeout 1h | limit @live --timeout soon | limit @live --nonsense 1
restart @nobody | restart @nobody --json | adopt @nobody | rm @nobody | rm -y @live
prune @live | checkpoint @nobody | stop @nobody | stop @nobody --json | stop @good --wait soon
""".replace("\n", " | ")
"""Lines that are refused."""

MORE_WRONG = """
queue nonsense | queue show nothing | queue show nothing --json | queue cancel nothing | queue retry nothing
queue pause nothing | queue resume nothing | queue clear nothing | queue check nothing | queue move nothing --first
queue edit nothing --priority 1 | queue edit queue-1/first --priority x | queue accept nothing | queue set
queue ls --state nonsense
sweep show nothing | sweep check nothing --json | sweep add nothing --grid a=1 | sweep retry nothing
sweep add grid --grid nonsense
gpus quarantine 9 | gpus clear 9 | gpus release @nobody | gpus unreserve nothing | gpus reserve --for 1h
gpus reserve --cards 1 --for never | gpus idle --for soon | gpus health 9 | gpus reset-request 9 | gpus nonsense
doctor --nonsense | fault list --nonsense
""".replace("\n", " | ")
"""The same of the queue, the cards and the box."""

ACTS = """
limit @act --timeout 2h | limit @act --timeout +1h --json | checkpoint @act --no-wait | checkpoint @act --wait 1s --json
sentinel @act --for started | sentinel @act --for step=5 --max 1s | exec @act -- sh -c 'cat; exit 4'
stop @act --reason 'a "reason" with $HOME, ü and !' | stop @act | attach @act | restart @act --dry-run --timeout 1h
restart @act --timeout 1h | show @act | stop --now --json @act | logs @act --attempt 1 | show @act --attempt 2 --diff
prune @act -y | rm -y @act | rm -y @act | show @act
"""
"""Lines that change a run, one after the other; each way has a run of its own."""

QUEUE_ACTS = """
queue pause @queue | queue edit @queue/first --priority 5 | queue move @queue/second --first --json
queue edit @queue/ --max-parallel 1 --hold-after 2 | queue show @queue/second | queue cancel @queue/second -y
queue ls @queue | queue cancel @queue/second | queue check @queue | queue retry @queue/second --json
queue clear @queue -y | queue cancel @queue/ -y --json | queue clear @queue | queue clear @queue -y | queue ls @queue
"""
"""The same of a group of the queue; it stays paused, so that no worker is needed."""

CARD_ACTS = """
gpus quarantine 1 --reason 'it smells' | gpus | gpus clear 1 --reason better | gpus clear 1
gpus reserve --gpus 1 --from +5h --for 1h --reason talk | gpus reservations | gpus reset-request 1
queue set --cpu-slots 2 | queue set --cpu-slots 2 --json | queue drain | queue resume
"""
"""What is the account's own, and so is done here, undone, and done there."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """The box: its runs and its queue are made once, by its own account."""
    skip_without_rights()
    with Sshd.started(options="PermitUserEnvironment yes") as sshd:
        yield Loopback(sshd)


@pytest.fixture
def box(made: Loopback, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """The box as a place of this test's desk."""
    assert isolated_environment
    monkeypatch.setenv("HOLDFAST_SSH", str(made.sshd.program))
    monkeypatch.setenv("TZ", TIME_ZONE)  # a desk says which one its people live in
    made.add()
    if not (made.home / "work").exists():
        _make_states(made)
    yield made
    end_masters()


def _make_states(box: Loopback) -> None:
    done = box.type_on_box(STATES)
    assert "holdfast itself failed" not in done.err, done
    (run,) = box.runs.glob("*-trained-*")
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    make_directory(run / "checkpoints")
    damage(run / "checkpoints" / "step-3")
    box.give(run / "checkpoints")


def split(text: str) -> list[list[str]]:
    """The lines of a table, each as its words; quotes are as in sh."""
    return [shlex.split(line) for line in text.replace("\n", " | ").split(" | ") if line.strip()]


def name_runs(words: Sequence[str], prefix: str, number: int = 0) -> list[str]:
    """``@good`` as it is typed; of a pair its first or second one."""
    return [re.sub(r"^@([a-z]+)", rf"{prefix}\1" + (f"-{number}" if number else ""), word) for word in words]


def type_at_desk(words: Sequence[str], number: int = 0) -> list[str]:
    """The line with its place: at the run, or as ``--on``."""
    if VERBS[find_verb(words)].arguments[:1] and any(word.startswith("@") for word in words) and not is_queue(words):
        return name_runs(words, f"{PLACE}:", number)
    at = words.index("--") if "--" in words else len(words)
    return name_runs([*words[:at], "--on", PLACE, *words[at:]], "", number)


def is_queue(words: Sequence[str]) -> bool:
    """Whether what is named are jobs of the queue, which have no place in their name."""
    return words[0] in ("queue", "sweep")


def find_verb(words: Sequence[str]) -> str:
    """Its name in the table of the router."""
    return " ".join(words[:2]) if " ".join(words[:2]) in VERBS else words[0]


def find_run(words: Sequence[str]) -> str:
    """The run that a line is about, as a hint without one names it."""
    named = [word for word in words if word.startswith("@")]
    return named[0][1:] if len(named) == 1 and not is_queue(words) else RUN


def compare(words: Sequence[str], here: Ended, there: Ended, *, pairs: Sequence[str] = ()) -> list[str]:
    """What differs, as lines for a person."""
    is_json = "--json" in words
    wrong = [] if here.code == there.code else [f"exit code {here.code}, at the desk {there.code}"]
    for ours, theirs, plain in ((here.out, there.out, is_json), (here.err, there.err, False)):
        # What can be typed on the box is printed so that it can be typed at the desk: test_from_desk.py.
        named = HINT if plain else EVERYTHING
        expected = named.sub(lambda found: name_place(found[0], PLACE, find_run(words)), end_pair(ours, pairs))
        told = [expected, end_pair(theirs, pairs)]
        if is_json:  # a run's place is known at the desk alone
            told = [text.replace('"place": null', f'"place": "{PLACE}"') for text in told]
        box, desk = (alike(text).splitlines() for text in told)
        wrong += list(difflib.unified_diff(box, desk, "on the box", "at the desk", lineterm="", n=0))[2:]
    return [f"{' '.join(words)}: {line}" for line in wrong]


HINT = re.compile(r'^ *"(hint|rerun|rerun_failed|rerun_cancelled)": .*$', re.MULTILINE)
"""What of JSON is for people."""
EVERYTHING = re.compile(r"(?s)\A.+\Z")
TABLES = {"looks": LOOKS, "more looks": MORE_LOOKS, "wrong": WRONG, "more wrong": MORE_WRONG}


@pytest.mark.parametrize("table", list(TABLES))
def test_what_is_asked_at_a_desk_is_what_the_box_says(box: Loopback, table: str) -> None:
    wrong: list[str] = []
    for words in split(TABLES[table]):
        here = box.here(*name_runs(words, ""))
        there = box.there(*type_at_desk(words))
        wrong += compare(words, here, there)
        if "wrong" in table and not here.code:
            wrong.append(f"{' '.join(words)}: not refused")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("table", "pair"), [(ACTS, "act"), (QUEUE_ACTS, "queue")], ids=["runs", "queue"])
def test_what_is_done_from_a_desk_is_what_is_done_on_the_box(box: Loopback, table: str, pair: str) -> None:
    wrong: list[str] = []
    for words in split(table):
        here = box.here(*name_runs(words, "", 1))
        there = box.there(*type_at_desk(words, 2))
        wrong += compare(words, here, there, pairs=[pair])
    assert not wrong, "\n".join(wrong)


def test_what_is_the_accounts_own_is_changed_from_both(box: Loopback) -> None:
    answers: list[list[Ended]] = [[], []]
    for number, answer in enumerate(answers):
        for words in split(CARD_ACTS):
            answer.append(box.there(*type_at_desk(words)) if number else box.here(*words))
        (reservation,) = re.findall(r"\br[0-9a-f]{8}\b", box.here("gpus", "reservations").out)
        assert box.here("gpus", "unreserve", reservation).code == 0
    wrong: list[str] = []
    for words, here, there in zip(split(CARD_ACTS), *answers, strict=True):
        wrong += compare(words, here, there)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_at_the_desk_is_drawn_on_like_one_on_the_box(box: Loopback, columns: int) -> None:
    wrong: list[str] = []
    for words in split("show @bad | diagnose @bad | queue | gpus | sweep show grid | doctor | show @nobody"):
        here = box.here(*name_runs(words, ""), columns=columns)
        there = box.there(*type_at_desk(words), columns=columns)
        wrong += compare(words, here, there)
        if words[0] == "gpus":
            assert "\x1b[1m" in there.out, there.out
    assert not wrong, "\n".join(wrong)


def test_every_routed_verb_is_compared_or_says_why_not() -> None:
    typed = {find_verb(words) for table in (*TABLES.values(), ACTS, QUEUE_ACTS, CARD_ACTS) for words in split(table)}
    routed = {name for name, verb in VERBS.items() if verb.kind is Kind.ROUTED}
    assert routed - typed - set(OUTSIDE) == set()
    assert set(OUTSIDE) <= routed
    assert typed <= routed
