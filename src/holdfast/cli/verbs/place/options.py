"""What several verbs of ``holdfast place`` take."""

from __future__ import annotations

import click

from holdfast.cli.completion import build_completer
from holdfast.desk.places.names import list_place_names
from holdfast.desk.profiles.read import list_profile_names

complete_places = build_completer(list_place_names)
complete_profiles = build_completer(list_profile_names)
place_argument = click.argument("name", metavar="PLACE", shell_complete=complete_places)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
