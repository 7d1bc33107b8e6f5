"""Where a command line goes: every form of naming a place, and every contradiction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.desk.route.line import read_line
from holdfast.desk.route.router import Call, decide_route, split_run
from holdfast.desk.route.table import Kind
from holdfast.model.errors import NoSuchRun, UsageError

pytestmark = pytest.mark.pure


class Desk:
    """Two places; `digits` ran at gpu1, `eval` at both, `here` on this machine and at gpu2."""

    runs = (
        ("gpu1", "20261120-104501-digits-3fa2"),
        ("gpu1", "20261120-104501-eval-3fa3"),
        ("gpu2", "20261120-104501-eval-3fa4"),
        ("gpu2", "20261120-104501-here-3fa5"),
    )

    def check_place(self, name: str) -> None:
        if name not in {"gpu1", "gpu2"}:
            raise UsageError(f"there is no place {name!r}", hint="did you mean gpu1?")

    def is_place(self, name: str) -> bool:
        return name in {"gpu1", "gpu2", "here"}

    def is_here(self, text: str) -> bool:
        return text == "here"

    def find_runs(self, text: str) -> Sequence[tuple[str, str]]:
        return [(place, run) for place, run in self.runs if text == run[16:-5] or run.startswith(text)]

    def find_queued(self, text: str) -> Sequence[tuple[str, str]]:
        return [("gpu2", "20261120-104501-queued-3fa6")] if text == "queued" else []


def calls(*argv: str) -> list[tuple[str, str]]:
    return [(call.place, " ".join(call.argv)) for call in decide_route(argv, Desk()).calls]


HERE = [
    "ls",
    "show here",
    "show nobody-knows",
    "show local:digits",
    "show --runs /runs digits",
    "show /data/a:b/20261120-104501-digits-3fa2",
    "checkpoints ls ./some:where",
    "checkpoints ls",
    "wait",
    "queue",
    "queue show digits",
    "explain gpu1:x",
    "nonsense gpu1:x",
    "--version",
    "",
    "run --env A=gpu1:b train.yaml",
    "run -- python train.py --on gpu1",
    "stop here --reason gpu1:full",
    "submit --after here train.yaml",
]


def test_what_names_no_place_stays_here() -> None:
    wrong = []
    for text in HERE:
        stripped = text.replace("local:", "").replace(" --on local", "")
        if calls(*text.split()) != [("local", stripped)]:
            wrong.append((text, calls(*text.split())))
    assert wrong == []


THERE = {
    "show gpu1:x": "show x",
    "show digits": "show digits",
    "show 20261120-104501-digits": "show 20261120-104501-digits",
    "show --on gpu1 x": "show x",
    "metrics gpu1:a gpu1:b loss": "metrics a b loss",
    "metrics --on gpu1 a gpu1:b val:loss -n 5": "metrics a b val:loss -n 5",
    "metrics digits eval": "metrics digits eval",
    "show x --on gpu1": "show x",
    "--on gpu1 show x": "show x",
    "show --on=gpu1 x": "show x",
    "show --on gpu1 gpu1:x": "show x",
    "--on=gpu1 gpus --json": "gpus --json",
    "logs -fn 5 gpu1:x": "logs -fn 5 x",
    "logs -n5 gpu1:x": "logs -n5 x",
    "logs --lines=5 gpu1:x --attempt all": "logs --lines=5 x --attempt all",
    "logs -f -- gpu1:x": "logs -f -- x",
    "stop --reason local:x gpu1:x": "stop --reason local:x x",
    "stop gpu1:x --bogus": "stop x --bogus",
    "rm -y gpu1:a gpu1:b": "rm -y a b",
    "wait gpu1:night/": "wait night/",
    "wait --on gpu1": "wait",
    "queue --on gpu1": "queue",
    "queue --on gpu1 ls --json": "queue ls --json",
    "queue move a --before b --on gpu1": "queue move a --before b",
    "queue ls gpu1:night": "queue ls night",
    "queue cancel gpu1:a gpu1:night/": "queue cancel a night/",
    "sweep show gpu1:rates": "sweep show rates",
    "sweep export gpu1:rates out:put.csv": "sweep export rates out:put.csv",
    "gpus --json --on gpu1": "gpus --json",
    "gpus release gpu1:x": "gpus release x",
    "checkpoints ls gpu1:/data/ckpt": "checkpoints ls /data/ckpt",
    "checkpoints gpu1:digits": "checkpoints digits",
    "checkpoints --json digits --on gpu1": "checkpoints --json digits",
    "checkpoints export --step 3 gpu1:x out:put.pt": "checkpoints export --step 3 x out:put.pt",
    "restart gpu1:x -- python --on gpu2": "restart x -- python --on gpu2",
    "limit gpu1:x --memory 8GB": "limit x --memory 8GB",
    "patrol --on gpu1": "patrol",
    "show gpu1:a:b": "show a:b",
    "sweep show night --on gpu1": "sweep show night",
    "stop gpu1:x --reason --on": "stop x --reason --on",
}


def test_what_names_a_place_goes_there_without_the_name() -> None:
    wrong = {text: calls(*text.split()) for text, sent in THERE.items() if calls(*text.split()) != [("gpu1", sent)]}
    assert wrong == {}
    assert calls("diagnose", "queued") == [("gpu2", "diagnose queued")]


OWN = {
    "submit --gpus 1 --on gpu1 -- python x.py --on gpu2": "submit --gpus 1 --on gpu1 -- python x.py --on gpu2",
    "submit --on gpu1 --after gpu1:a,b train.yaml": "submit --after a,b train.yaml --on gpu1",
    "sweep --on gpu1 --grid lr=1,2 job.yaml": "sweep --grid lr=1,2 job.yaml --on gpu1",
    "sweep job.yaml --on gpu1": "sweep job.yaml --on gpu1",
    "preflight --on gpu1 job.yaml": "preflight job.yaml --on gpu1",
    "drill --on gpu1 train.yaml": "drill train.yaml --on gpu1",
}
"""Verbs that read --on themselves get it among their options."""


def test_verbs_that_are_read_here_get_the_place_among_their_options() -> None:
    assert {text: calls(*text.split()) for text in OWN} == {text: [("local", own)] for text, own in OWN.items()}


KINDS = {
    "run --on gpu1 x.yaml": Kind.ORDERED,
    "ls --on gpu1": Kind.MERGED,
    "preflight --on gpu1 x.yaml": Kind.ORDERED,
    "sweep x.yaml --on gpu1": Kind.ORDERED,
    "sweep show night --on gpu1": Kind.ROUTED,
    "restart gpu1:x": Kind.ROUTED,
    "restart gpu1:x --limit-memory 8GB": Kind.ROUTED,
    "restart gpu1:x --job=x.yaml": Kind.ORDERED,
    "wait gpu1:x": Kind.MERGED,
    "explain U11": Kind.DESK,
}


def test_a_restart_with_a_job_file_is_read_at_the_desk() -> None:
    found = {text: decide_route(text.split(), Desk()).kind for text in KINDS}
    assert found == KINDS


def test_several_places_are_grouped_in_the_order_they_were_named() -> None:
    assert calls("rm", "-y", "gpu2:c", "gpu1:a", "here", "gpu2:d") == [
        ("gpu2", "rm -y c d"),
        ("gpu1", "rm -y a"),
        ("local", "rm -y here"),
    ]


REFUSED = {
    "show gpu3:x": ("no place 'gpu3'", "did you mean gpu"),
    "show ..:x": ("no place '..'", "did you mean"),
    "queue --on ../gpu1": ("no place '../gpu1'", "did you mean"),
    "gpus --on gpu1:": ("no place 'gpu1:'", "did you mean"),
    "gpus --on=": ("no place ''", "did you mean"),
    "run --on gpu3 x.yaml": ("no place 'gpu3'", "did you mean"),
    "ls --on": ("--on needs a place", "--on PLACE"),
    "gpus --on gpu1 --on gpu2": ("one place", "each place"),
    "gpus --on gpu1,gpu2": ("one place", "each place"),
    "submit --on gpu1 --on gpu2 x.yaml": ("one place", "each place"),
    "show --on gpu1 gpu2:x": ("is at gpu2, and --on says gpu1", "one place"),
    "show --on gpu1 local:x": ("is at local, and --on says gpu1", "one place"),
    "show --on local gpu1:x": ("is at gpu1, and --on says local", "one place"),
    "metrics gpu1:a gpu2:b": ("gpu2:b is at gpu2, and the first run is at gpu1", "once for each place"),
    "metrics here gpu2:b": ("the first run is on this machine", "once for each place"),
    "show gpu1:": ("names a place and no run", "holdfast ls --on gpu1"),
    "show gpu1:a gpu1:b": ("about one run, and gpu1:b is more than that", "once for each"),
    "show eval": ("'eval' is at 2 places: gpu1:20261120-104501-eval-3fa3, gpu2:", "PLACE:RUN"),
    "explain --on gpu1 U11": ("has no place: what it explains", "leave --on out"),
    "schema --on gpu1": ("has no place", "leave --on out"),
    "--on gpu1": ("no verb", "lists the verbs"),
    "--on gpu1 nonsense": ("no verb", "lists the verbs"),
    "submit --after gpu1:a train.yaml": ("queue of this machine, and that one is at gpu1", "--on gpu1"),
    "submit --on gpu1 --after gpu2:a train.yaml": ("queue of gpu1, and that one is at gpu2", "--on gpu2"),
    "sweep --on gpu1 job.yaml --after=b,local:a": ("that one is at local", "holdfast wait"),
}


def test_what_cannot_be_meant_is_refused_with_what_can() -> None:
    wrong = []
    for text, (message, hint) in REFUSED.items():
        try:
            wrong.append((text, calls(*text.split())))
        except UsageError as error:
            if message not in str(error) or hint not in error.hint:
                wrong.append((text, [(str(error), error.hint)]))
    assert wrong == []


def test_a_place_where_a_run_is_meant_is_told_with_how_its_runs_are_listed() -> None:
    for words in ("show gpu1", "logs -f gpu1", "exec gpu1 -- ls", "restart gpu1"):
        with pytest.raises(NoSuchRun, match="gpu1 is a place, and no run has this name") as caught:
            calls(*words.split())
        assert caught.value.hint == "holdfast ls --on gpu1 lists its runs"
    assert calls("show", "here") == [("local", "show here")], "a run of this name is meant"


def test_help_is_asked_of_this_machine() -> None:
    assert calls("show", "gpu1:x", "--help") == [("local", "show gpu1:x --help")]
    assert calls("limit", "gpu1:x", "-h") == [("local", "limit gpu1:x -h")]
    assert calls("restart", "gpu1:x", "--", "x", "--help") == [("gpu1", "restart x -- x --help")]


def test_a_verb_that_reads_places_itself_gets_them_among_its_options() -> None:
    assert calls("--on", "gpu1", "run", "--gpus", "1", "--", "x", "--on", "y") == [
        ("local", "run --gpus 1 --on gpu1 -- x --on y")
    ]


def test_a_run_is_split_at_its_first_colon_and_a_path_is_not() -> None:
    assert split_run("gpu1:a:b") == ("gpu1", "a:b")
    assert split_run("./gpu1:a") == (None, "./gpu1:a")
    assert split_run("digits") == (None, "digits")


def test_words_of_any_kind_reach_the_place_as_they_are() -> None:
    odd = ("two\nlines", "it's", "!", "ü", "", "a b", "gpu2:")
    found = decide_route(["stop", "gpu1:x", *(word for text in odd for word in ("--reason", text))], Desk())
    assert found.calls == (Call("gpu1", ("stop", "x", *(word for text in odd for word in ("--reason", text)))),)


def test_a_value_is_found_in_every_spelling() -> None:
    line = read_line(["logs", "-fn5", "x", "--attempt=all"])
    given = [(given.name, line.text(given)) for given in line.given]
    assert given == [("-n", "5"), ("names", "x"), ("--attempt", "all")]


def test_a_run_like_another_begins_where_that_one_is_unless_a_place_is_named() -> None:
    digits = "gpu1:digits"
    assert calls("run", "--like", "digits") == [("local", f"run --like {digits} --on gpu1")]
    assert calls("run", f"--like={digits}", "--gpus", "1") == [("local", f"run --like={digits} --gpus 1 --on gpu1")]
    assert calls("run", "--like", "digits", "--on", "gpu2", "--", "x") == [
        ("local", f"run --like {digits} --on gpu2 -- x")
    ]
    assert calls("run", "--like", "digits", "--on", "local") == [("local", f"run --like {digits} --on local")]
    assert calls("run", "--like", "here", "--on", "gpu1") == [("local", "run --like here --on gpu1")]
    assert calls("run", "--like", "local:digits") == [("local", "run --like digits")]
    assert calls("run", "--like", "nobody-knows") == [("local", "run --like nobody-knows")]
    with pytest.raises(UsageError, match="is at 2 places"):
        calls("run", "--like", "eval")
    with pytest.raises(UsageError, match="names a place and no run"):
        calls("run", "--like", "gpu1:")
