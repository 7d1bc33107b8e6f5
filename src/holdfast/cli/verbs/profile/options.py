"""What several verbs of ``holdfast profile`` take."""

from __future__ import annotations

import click

from holdfast.cli.verbs.place.options import complete_profiles

profile_argument = click.argument("name", metavar="PROFILE", shell_complete=complete_profiles)
