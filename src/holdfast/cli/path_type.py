"""The type of an argument that is a path, for a TAB: whoever opens the file says what is wrong with it."""

from __future__ import annotations

import click

PATH = click.Path(readable=False)
"""click itself would refuse a file that exists and is closed, as a usage error without the reason."""
