"""``holdfast place add``: a table in places.toml, and a first look at the box."""

from __future__ import annotations

from collections.abc import Iterable

import click

from holdfast.cli.consent import confirm
from holdfast.cli.render import note, print_record
from holdfast.cli.render.places import describe_problem, print_added, print_next
from holdfast.cli.render.profiles import print_introduction
from holdfast.core.profile.lint import list_dangers
from holdfast.desk.connect import measure_box
from holdfast.desk.place_list import REACHED
from holdfast.desk.places.aliases import is_alias
from holdfast.desk.places.config import add_place, places_path, read_places
from holdfast.desk.places.schema import build_place, check_name, find_differences
from holdfast.desk.profiles.read import load_profile
from holdfast.desk.toml import Node
from holdfast.model.errors import HoldfastError, InternalError, UsageError
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import record
from holdfast.model.record import replace as record_replace
from holdfast.model.slurm import SLURM

from . import VERBS
from .options import complete_places, complete_profiles, json_option

EPILOG = """\b
Examples:
  holdfast place add gpu1                     gpu1 is a Host of ~/.ssh/config
  holdfast place add gpu1 me@gpu1.lab --root /data/me/runs
  holdfast place add lab me@login --kind slurm --root /scratch/me/runs --slurm partition=gpu
  holdfast place add rented root@203.0.113.7 --port 41022 --profile runpod
  holdfast place add rented root@203.0.113.9 --port 10022 --replace"""


@record
class AddedPlace:
    """A place that is configured in the file `path`; not `changed`: it stood there so before.

    `reach` is null where it was not measured now, else ``here`` or the code of the error, with `reason` and `hint` as
    its words.
    """

    place: Place
    path: str
    changed: bool
    facts: BoxFacts | None
    reach: str | None
    reason: str
    hint: str


@click.command("add", short_help=VERBS["add"], epilog=EPILOG)
@click.argument("name", metavar="NAME", shell_complete=complete_places)
@click.argument("host", required=False, metavar="[USER@HOST]")
@click.option("--kind", type=click.Choice(["ssh", "slurm"]), help="slurm: its Slurm starts the runs.  [default: ssh]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port of its sshd.")
@click.option("--root", metavar="DIR", help="Runs root there: absolute, or ~/...  [default: as holdfast would choose]")
@click.option("--python", metavar="PATH", help="Interpreter there.  [default: one is looked for]")
@click.option("--setup", multiple=True, metavar="LINE", help="Line of sh before each job there; may be repeated.")
@click.option(
    "--env-from", type=click.Choice(["login", "none"]), help="Whether jobs get the environment of a login shell."
)
@click.option(
    "--slurm", multiple=True, metavar="KEY=VALUE", help="Option of sbatch for each job there, like partition=gpu."
)
@click.option(
    "--profile", metavar="PROFILE", shell_complete=complete_profiles, help="What kind of machine it is; see `profile`."
)
@click.option("--replace", is_flag=True, help="Replace what is configured; runs and rent stay known.")
@click.option("--yes", is_flag=True, help="Do not ask about what the profile says that cannot be undone.")
@click.option("--probe/--no-probe", default=True, help="Measure it now.  [default: probe]")
@json_option
def command(
    *, name: str, host: str | None, replace: bool, probe: bool, yes: bool, as_json: bool, **stated: object
) -> int:
    """Configure a place under NAME, and measure it when it can be reached.

    HOST is what ssh takes: an alias or USER@HOST; without it NAME is an alias. With --kind slurm it is a login node,
    and without it this machine is one. What ssh has to know besides (jump hosts, keys) stands in ~/.ssh/config. A
    place that cannot be reached now is configured all the same. The first place with a PROFILE shows what that kind of
    machine does by the clock and what cannot be undone there, and asks whether you have read it.
    """
    known = read_places()
    before = known.get(name)
    place = _keep_rent(_build(name, host, stated), before)
    if before is not None and before != place and not replace:
        differences = "; ".join(find_differences(before, place))
        raise UsageError(
            f"{places_path()}: {name} is there already, with other values: {differences}",
            hint="--replace puts the new ones in their stead; `holdfast place show` prints it",
        )
    _introduce(place, known.values(), yes=yes, as_json=as_json)
    path = places_path() if before == place else add_place(place, replace=replace)
    if not as_json:
        print_added(place, path, is_new=before != place)
    facts, problem = _measure(place) if probe else (None, None)
    if as_json:
        reach = REACHED if facts is not None else None
        words = (reach, "", "") if problem is None else (problem.code, str(problem), problem.hint)
        print_record(AddedPlace(place, path, before != place, facts, *words))
        return 0
    if problem is not None:
        note(describe_problem(problem))
    print_next(place, facts, problem)
    return 0


def _build(name: str, host: str | None, stated: dict[str, object]) -> Place:
    if wrong := check_name(name):
        raise UsageError(wrong)
    is_slurm = stated.get("kind") == SLURM
    if host is None and not (is_slurm and not is_alias(name)):
        if not is_alias(name):
            raise UsageError(
                f"{name} is no Host of ssh's configuration, so where it is has to be said",
                hint=f"holdfast place add {name} USER@HOST",
            )
        host = name
    slurm = stated.pop("slurm")
    if isinstance(slurm, tuple) and slurm:
        pairs = [word.partition("=") for word in slurm]
        stated["slurm"] = {key.strip(): Node(value.strip(), "--slurm") for key, _, value in pairs}
    values = {
        key: Node([Node(line, "--setup") for line in value] if isinstance(value, tuple) else value, _option(key))  # type: ignore[arg-type] # of click
        for key, value in {"host": host, **stated}.items()
        if value not in (None, ())
    }
    return build_place(name, values, name)


def _keep_rent(place: Place, before: Place | None) -> Place:
    """A rented box that comes back at another address is the same rent, and the same kind of machine."""
    return place if before is None else record_replace(place, rent=before.rent, profile=place.profile or before.profile)


def _introduce(place: Place, known: Iterable[Place], *, yes: bool, as_json: bool) -> None:
    """At the first place of a profile: its clocks, and what cannot be undone, which somebody is to have read."""
    if not place.profile:
        return
    profile = load_profile(place.profile)
    if any(other.profile == place.profile for other in known):
        return
    if not as_json:
        print_introduction(profile)
    if list_dangers(profile):
        refusal = f"{place.name} was not configured: {profile.name} has acts that cannot be undone"
        confirm("Have you read this?", yes=yes, as_json=as_json, refusal=refusal)


def _option(key: str) -> str:
    return "USER@HOST" if key == "host" else f"--{key.replace('_', '-')}"


def _measure(place: Place) -> tuple[BoxFacts | None, HoldfastError | None]:
    try:
        return measure_box(place), None
    except InternalError:
        raise
    except HoldfastError as error:
        return None, error
