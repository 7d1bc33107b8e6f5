"""The frame: version, help, verbs, usage errors, and what starting up costs."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast import __version__
from holdfast.cli.verbs import HIDDEN, SUMMARIES
from tests.cli.conftest import ENTRY

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def imported_by(*args: str) -> set[str]:
    """The modules that ``holdfast ARGS`` imports."""
    command = [sys.executable, "-X", "importtime", *ENTRY[1:], *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


def test_version_is_printed(holdfast: Command) -> None:
    ended = holdfast("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"holdfast {__version__}\n", "")
    assert holdfast("-V").out == ended.out


def test_version_imports_nothing_third_party() -> None:
    modules = imported_by("--version")
    assert "holdfast.cli.main" in modules
    assert not modules & {"click", "yaml", "msgspec", "rich", "dataclasses", "typing", "holdfast.cli.errors"}


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    modules = imported_by("--help")
    assert "click" in modules
    assert not modules & {"yaml", "msgspec", "rich", "sqlite3", "json", "dataclasses", "holdfast.cli.jobfile"}
    assert not {name for name in modules if name.startswith("holdfast.cli.verbs.")}


def test_running_a_job_imports_nothing_that_it_does_not_use() -> None:
    modules = imported_by("run", "absent.yaml")
    assert "holdfast.cli.jobfile" in modules
    assert not modules & {"msgspec", "rich", "sqlite3", "holdfast.agent.supervisor", "tomllib", "asyncio"}


def test_help_lists_the_verbs(holdfast: Command) -> None:
    ended = holdfast("--help")
    assert ended.code == 0
    for verb, summary in SUMMARIES.items():
        assert (f"\n  {verb} " in ended.out) is (verb not in HIDDEN), verb
        assert (summary in ended.out) is (verb not in HIDDEN), verb
    assert holdfast("-h").out == ended.out


def test_no_verb_at_all_shows_the_help_and_is_a_usage_error(holdfast: Command) -> None:
    ended = holdfast()
    assert (ended.code, ended.out) == (64, "")
    assert "Verbs:" in ended.err


@pytest.mark.parametrize("verb", sorted(SUMMARIES))
def test_each_verb_has_the_help_that_the_list_shows(verb: str, holdfast: Command) -> None:
    ended = holdfast(verb, "--help")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"Usage: holdfast {verb} ")
    from importlib import import_module

    assert import_module(f"holdfast.cli.verbs.{verb}").command.get_short_help_str(200) == SUMMARIES[verb]


def test_an_unknown_verb_gets_a_suggestion(holdfast: Command) -> None:
    ended = holdfast("sho", "x")
    assert ended.code == 64
    assert ended.err == ("holdfast: there is no verb 'sho'\n  did you mean show? `holdfast --help` lists the verbs\n")
    assert "holdfast run -- COMMAND" in holdfast("python").err


@pytest.mark.slow
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


def test_json_behind_the_dashes_is_the_jobs_own(holdfast: Command) -> None:
    ended = holdfast("run", "--nonsense", "--", "true", "--json")
    assert (ended.code, ended.out) == (64, "")


def test_the_installed_module_and_the_package_are_the_same_program(holdfast: Command) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == holdfast("--version").out


@pytest.mark.parametrize(
    ("word", "meant"),
    [("ps", "ls"), ("status", "ls"), ("kill", "stop"), ("srun", "run"), ("sbatch", "submit"), ("top", "gpus")],
)
def test_what_other_tools_call_a_verb_is_understood(word: str, meant: str, holdfast: Command) -> None:
    ended = holdfast(word, "x")
    assert ended.code == 64
    assert f"did you mean `holdfast {meant}`?" in ended.err


def test_each_other_word_leads_to_a_verb_and_is_none_itself() -> None:
    from holdfast.cli.group import ELSEWHERE

    assert not set(ELSEWHERE) & set(SUMMARIES)
    assert {meant.split()[0] for meant in ELSEWHERE.values()} <= {*SUMMARIES, "--help"}
