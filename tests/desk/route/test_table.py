"""The table of verbs against the command line: each verb, each option, each argument."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from holdfast.cli.group import holdfast
from holdfast.cli.job.options import JobCommand
from holdfast.cli.lazy_group import LazyGroup
from holdfast.desk.route.table import JOB_OPTIONS, VERBS, Kind, Side

pytestmark = pytest.mark.cli


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every verb and sub-verb, with those that are not listed."""
    if path:
        yield " ".join(path), command
    if isinstance(command, LazyGroup):
        for name in command.summaries:
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from walk(found, (*path, name))


TREE = dict(walk(holdfast))


def test_every_verb_has_a_row_and_every_row_is_a_verb() -> None:
    assert set(VERBS) == set(TREE)


def test_every_option_is_in_its_row_and_takes_a_value_where_the_row_says_so() -> None:
    wrong = []
    for name, command in TREE.items():
        flags: set[str] = set()
        options: set[str] = set()
        for parameter in command.params:
            if not isinstance(parameter, click.Option) or "--on" in parameter.opts:
                continue
            (flags if parameter.is_flag or parameter.count else options).update(
                [*parameter.opts, *parameter.secondary_opts]
            )
        row = VERBS[name]
        wrong += [f"{name} {word}: flag" for word in sorted(flags ^ row.flags)]
        wrong += [f"{name} {word}: option" for word in sorted(options ^ set(row.options))]
    assert wrong == []


def test_every_argument_is_in_its_row_in_its_place() -> None:
    wrong = []
    for name, command in TREE.items():
        found = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        row = VERBS[name]
        many = bool(found) and found[-1].nargs == -1
        if [item.name for item in found] != [argument for argument, _ in row.arguments] or many != row.many:
            wrong.append(f"{name}: {[item.name for item in found]}, many {many}")
        if any(item.nargs != 1 for item in found[:-1]):
            wrong.append(f"{name}: only the last argument may take many words")
    assert wrong == []


def test_what_completes_runs_is_a_run_in_the_table() -> None:
    wrong = []
    for name, command in TREE.items():
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                names_runs = "RUN" in (parameter.metavar or "") or parameter.name == "run"
                if names_runs != (dict(VERBS[name].arguments)[str(parameter.name)] in (Side.RUN, Side.BESIDE)):
                    wrong.append(f"{name} {parameter.name}")
    assert wrong == []


OF_THE_BOX = frozenset(
    {"--runs", "--keep", "--to", "--using", "--nvml-library", "--claims", "--shared", *JOB_OPTIONS.split()}
    | {"directory", "out"}
)
"""Parameters that name files of the machine where the verb is carried out (of a job: or of the code that is pushed)."""


def test_every_path_is_the_desks_or_is_of_the_box() -> None:
    wrong = []
    for name, command in TREE.items():
        row = VERBS[name]
        sides = {**dict(row.arguments), **row.options}
        for parameter in command.params:
            if not isinstance(parameter.type, click.Path):
                continue
            named = parameter.opts[-1] if isinstance(parameter, click.Option) else str(parameter.name)
            if sides[named] not in (Side.DESK_IN, Side.DESK_OUT) and named not in OF_THE_BOX:
                wrong.append(f"{name} {named}: {sides[named].value}")
    assert wrong == []


def test_a_routed_verb_writes_at_most_one_file_of_the_desk() -> None:
    for name, row in VERBS.items():
        sides = [*dict(row.arguments).values(), *row.options.values()]
        assert row.kind is Kind.DESK or sides.count(Side.DESK_OUT) <= 1, name


def test_what_stands_behind_two_dashes_is_a_command_where_the_row_says_so() -> None:
    assert {name for name, row in VERBS.items() if row.command} == {
        name for name, command in TREE.items() if isinstance(command, JobCommand)
    }


def test_a_verb_that_goes_to_a_place_has_on_in_its_help_and_others_have_not() -> None:
    wrong = []
    for name, command in TREE.items():
        if VERBS[name].takes_place != any("--on" in parameter.opts for parameter in command.params):
            wrong.append(name)
    assert wrong == []


def test_a_desk_verb_says_why_and_no_other_does() -> None:
    assert [name for name, row in VERBS.items() if bool(row.why) != (row.kind is Kind.DESK)] == []
