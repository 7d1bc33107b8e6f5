"""The frame: version, help, verbs, usage errors, and what starting up costs."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from holdfast import __version__
from holdfast.cli.group import holdfast as group
from holdfast.cli.job.schema import KEYS
from holdfast.cli.verbs import SUMMARIES
from holdfast.desk.route.line import read_line
from tests.cli.queues import say
from tests.desk.route.test_table import TREE
from tests.each import each

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def loaded_by(*args: str) -> set[str]:
    """The modules that ``holdfast ARGS`` has loaded when it ends, however they were imported."""
    code = (
        "import sys; from holdfast.cli.main import main; main(); sys.stdout.flush(); print('', *sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return set(done.stdout.split("\n"))


def test_version_is_printed(holdfast: Command) -> None:
    ended = holdfast("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"holdfast {__version__}\n", "")
    assert holdfast("-V").out == ended.out


def test_version_imports_nothing_third_party() -> None:
    modules = loaded_by("--version")
    assert "holdfast.cli.main" in modules
    assert not modules & {"click", "yaml", "dataclasses", "typing", "holdfast.cli.errors"}


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    modules = loaded_by("--help")
    assert "click" in modules
    assert not modules & {"yaml", "sqlite3", "dataclasses", "hashlib", "holdfast.cli.job.jobfile"}
    assert not {name for name in modules if name.startswith(("holdfast.cli.verbs.", "holdfast.store"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("ls",), ("holdfast.store.queue", "holdfast.agent.queue", "holdfast.diagnosis", "hashlib", "difflib")),
        (("stop", "--help"), ("holdfast.store.queue", "holdfast.agent.queue", "holdfast.diagnosis", "hashlib")),
        (("show", "--help"), ("holdfast.store.queue", "holdfast.agent.queue", "holdfast.diagnosis.logs", "hashlib")),
        (
            ("run", "absent.yaml"),
            ("holdfast.agent.checks", "holdfast.agent.supervise", "holdfast.diagnosis", "tomllib", "asyncio", "yaml"),
        ),
    ],
    ids=lambda value: value[0],
)
def test_a_command_loads_nothing_of_the_rooms_that_it_does_not_use(
    words: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    modules = loaded_by(*words)
    assert f"holdfast.cli.verbs.{words[0]}" in modules
    assert sorted(name for name in modules if f"{name}.".startswith(tuple(f"{room}." for room in unused))) == []


def test_help_lists_the_verbs(holdfast: Command) -> None:
    ended = holdfast("--help")
    assert ended.code == 0
    for verb, summary in SUMMARIES.items():
        assert f"\n  {verb} " in ended.out, verb
        assert summary in ended.out, verb
    assert holdfast("-h").out == ended.out


def test_no_verb_at_all_shows_the_help_and_is_a_usage_error(holdfast: Command) -> None:
    ended = holdfast()
    assert (ended.code, ended.out) == (64, "")
    assert "\n  run  " in ended.err


def test_the_help_of_run_fits_a_screen_and_the_rest_is_one_option_away(holdfast: Command) -> None:
    short, whole = holdfast("run", "--help").out, holdfast("run", "--help-all").out
    assert 24 <= len(short.splitlines()) <= 40
    assert "holdfast run --gpus 1" in short
    assert all(f"--{key.option}" in whole for key in KEYS if key.option)
    assert all(word in whole for word in ("--prove", "--run-id", "--slurm", "--env-file", "--like"))
    assert "--stall-startup" not in short
    # The number in the words is that of the options.
    shown = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE))
    assert f"Show all {len(shown)} options" in " ".join(short.split())


def list_examples() -> list[str]:
    """The commands of all examples; two spaces behind one stands what it does."""
    found = []
    for command in (group, *TREE.values()):
        for line in (command.epilog or "").splitlines():
            words = line.strip().partition("  ")[0].partition(" < ")[0].partition(" > ")[0].partition(" && ")[0]
            if re.match(r"holdfast [a-z]", words):
                found.append(words)
    return found


@each("example", list_examples())
def test_every_example_of_the_help_is_a_command_line_that_is_understood(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)  # its words are read, and nothing is done
    words = read_line(shlex.split(example)[1:]).argv
    with group.make_context("holdfast", list(words)) as context:
        group.invoke(context)


@pytest.mark.parametrize("verb", sorted(SUMMARIES))
def test_each_verb_has_the_help_that_the_list_shows(verb: str, holdfast: Command) -> None:
    ended = holdfast(verb, "--help")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"Usage: holdfast {verb} ")
    from importlib import import_module

    assert import_module(f"holdfast.cli.verbs.{verb}").command.get_short_help_str(200) == SUMMARIES[verb]


def test_a_misspelt_command_of_sweep_is_no_sweep_file(holdfast: Command) -> None:
    ended = holdfast("sweep", "shows", "rates")
    assert ended.code == 64
    assert "no command 'shows', and there is no such file\n  did you mean `holdfast sweep show`?" in ended.err
    ended = holdfast("sweep", "stop", "rates")
    assert (ended.code, "did you mean `holdfast queue cancel NAME/ --running`?" in ended.err) == (64, True)


def test_an_unknown_verb_gets_a_suggestion(holdfast: Command) -> None:
    ended = holdfast("sho", "x")
    assert ended.code == 64
    assert ended.err == ("holdfast: there is no verb 'sho'\n  did you mean show? `holdfast --help` lists the verbs\n")
    assert "holdfast run -- COMMAND" in holdfast("python").err


def test_a_run_where_a_command_of_a_group_belongs_is_told_the_commands(holdfast: Command) -> None:
    ended = holdfast("results", "gpu1:digits")
    assert (ended.code, ended.err.splitlines()[1]) == (64, "  it has collect, copy, shard")
    assert "did you mean show?" in holdfast("queue", "sho").err
    assert "holdfast ls --on PLACE" in holdfast("ls", "gpu1").err
    assert "Choose from: bash, zsh, fish\n" in holdfast("completion").err


def test_an_unknown_option_is_a_usage_error_in_words_and_in_json(holdfast: Command) -> None:
    ended = holdfast("run", "--gpu", "1")
    assert ended.code == 64
    assert ended.err.startswith("holdfast: no such option")
    assert "--gpus" in ended.err
    assert "`holdfast run --help`" in ended.err
    error = holdfast("run", "--gpu", "1", "--json").json()["error"]
    assert (error["code"], error["exit_code"], error["blame"]) == ("usage", 64, "user")
    assert error["message"].startswith("no such option")
    assert "holdfast run --help" in error["hint"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("restart", "x", "--lr", "0.01"), "holdfast restart RUN -- python train.py --lr ..."),
        (("run", "--lr=1", "--", "true"), "holdfast run -- python train.py --lr ..."),
        (("restart", "x", "--timeuot", "1h"), None),
        (("ls", "--lr"), None),
    ],
)
def test_an_option_of_the_job_itself_is_told_where_it_goes(
    holdfast: Command, words: tuple[str, ...], hint: str | None
) -> None:
    ended = holdfast(*words)
    assert ended.code == 64
    assert ("Did you mean '--timeout'?" in ended.err, "Did you mean '--slurm'?" in ended.err) == (
        "--timeuot" in words,
        False,
    )
    assert ("goes behind `--`, with the whole command" in ended.err) is (hint is not None)
    assert hint is None or ended.err.endswith(f"{hint}\n")


@each(
    ("words", "near"),
    [
        (("run", "--memory-limit", "1G"), "--limit-memory"),
        (("run", "--memory-high-limit", "1G"), "--limit-memory-high"),
        (("run", "--stop-grace", "1m"), "--grace"),
        (("run", "--free-min", "1G"), "--min-free"),
        (("run", "--timeuot", "1h"), "--timeout"),
    ],
)
def test_an_option_whose_words_stand_in_another_order_is_proposed(words: tuple[str, ...], near: str) -> None:
    ended = say(*words)
    assert (ended.code, f"Did you mean '{near}'?\n" in ended.err) == (64, True), ended.err
    # What has words besides ours may be an option of the job.
    assert ("goes behind `--`" in ended.err) is (words[1] == "--stop-grace")


@each(
    ("words", "told"),
    [
        (("queue", "move", "j2", "--after", "j5"), "write --before JOB, with the one that is to follow, or --last"),
        (("ls", "--tag", "x"), "runs have names and no tags: holdfast ls 'lr-*' lists those of a pattern"),
        (("logs", "x", "--tail", "5"), "write -n N, such as -n 5; "),
        (("queue", "edit", "j3", "--priority", "high"), "'high' is not a whole number from -1000000 to 1000000\n"),
        (("ls", "-n", "many"), "'many' is not a whole number\n"),
    ],
)
def test_a_wrong_option_or_number_is_told_what_there_is(words: tuple[str, ...], told: str) -> None:
    ended = say(*words)
    assert (ended.code, told in ended.err) == (64, True), ended.err


def test_an_unlike_option_is_not_proposed(holdfast: Command) -> None:
    for option in ("--lr", "--bogus"):
        assert holdfast("run", option, "3").err.startswith(f"holdfast: no such option '{option}'\n")


def test_json_behind_the_dashes_is_the_jobs_own(holdfast: Command) -> None:
    ended = holdfast("run", "--nonsense", "--", "true", "--json")
    assert (ended.code, ended.out) == (64, "")


def test_an_empty_home_is_the_accounts_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "show", "nosuch"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "HOME": ""},
    )  # fmt: skip
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert (done.returncode, f" under {home}/.local/share/holdfast/runs" in done.stderr) == (66, True), done.stderr


def test_the_installed_module_and_the_package_are_the_same_program(holdfast: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == holdfast("--version").out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ps", "ls"),
        ("status", "show"),
        ("health", "gpus health"),
        ("kill", "stop"),
        ("srun", "run"),
        ("sbatch", "submit"),
        ("top", "gpus"),
        ("statu", "show"),
        ("diff", "show RUN --against OTHER"),
    ],
)
def test_what_other_tools_call_a_verb_is_understood(word: str, meant: str, holdfast: Command) -> None:
    ended = holdfast(word, "x")
    assert ended.code == 64
    assert f"did you mean `holdfast {meant}`?" in ended.err


def test_two_runs_for_show_are_a_comparison(holdfast: Command) -> None:
    ended = holdfast("show", "a", "b")
    assert (ended.code, "holdfast show RUN --against OTHER" in ended.err) == (64, True)


@each(
    ("words", "meant"),
    [
        ("help run", "did you mean `holdfast run --help`?"),
        ("version", "did you mean `holdfast --version`?"),
        ("queue rm train", "did you mean `holdfast queue cancel JOB`?"),
        ("queue stop train", "did you mean `holdfast queue cancel JOB`?"),
        ("logs --tail 5", "write -n N, such as -n 5;"),
        ("train.py --lr 3", "to run a script: holdfast run -- python train.py --lr 3\n"),
        ("verify x", "\n  `holdfast --help` lists the verbs; to run"),
        ("plot x", "\n  `holdfast --help` lists the verbs; to run"),
        ("bundle x", "\n  `holdfast --help` lists the verbs; to run"),
        ("run --gpu-share -- true", "Did you mean '--share'?"),
        ("submit --like x", "it is one of `holdfast run` that `holdfast submit` has not: holdfast run --like ..."),
    ],
)
def test_words_of_other_tools_lead_to_the_whole_command(words: str, meant: str) -> None:
    said = say(*words.split())
    assert (said.code, meant in said.err) == (64, True), said


def test_a_status_of_nothing_in_particular_is_the_list(holdfast: Command) -> None:
    assert "did you mean `holdfast ls`?" in holdfast("status").err


def test_each_other_word_leads_to_a_verb_and_is_none_itself() -> None:
    from holdfast.cli.group import ELSEWHERE

    assert not set(ELSEWHERE) & set(SUMMARIES)
    assert {meant.split()[0] for meant in ELSEWHERE.values()} <= {*SUMMARIES, "--help", "--version"}


@pytest.mark.parametrize("verb", ["checkpoints", "fault", "gpus", "patrol"])
def test_each_verb_of_a_verb_has_the_help_that_its_list_shows(verb: str) -> None:
    from importlib import import_module

    package = import_module(f"holdfast.cli.verbs.{verb}")
    shown = {name: package.command.get_command(None, name).get_short_help_str(200) for name in package.VERBS}
    assert shown == package.VERBS


def test_a_verb_of_a_verb_imports_nothing_that_its_siblings_need() -> None:
    rooms = {name for name in loaded_by("gpus", "release", "--help") if name.startswith("holdfast.agent.cards.")}
    assert rooms == {f"holdfast.agent.cards.{name}" for name in ("release", "box", "line")}
