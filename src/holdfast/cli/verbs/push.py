"""``holdfast push``: a data set into a directory of a place."""

from __future__ import annotations

import errno
import os
import shlex

import click

from holdfast.cli.path_type import PATH
from holdfast.cli.render import note, print_record
from holdfast.cli.render.copying import CopyProgress
from holdfast.cli.verbs.place.options import complete_places
from holdfast.core.control_characters import clean
from holdfast.core.job.job_paths import is_own
from holdfast.desk.connect import find_place, open_box
from holdfast.model.errors import EXIT_STOPPED, StorageError, UsageError
from holdfast.model.units import format_bytes, format_count
from holdfast.transfer.data.push import GOES_ON, Pushed, push_data
from holdfast.transfer.data.roster import read_data

from . import SUMMARIES

EPILOG = """\b
holdfast push gpu1 imagenet '~/data'         all of it, as ~/data/imagenet there
holdfast push gpu1 imagenet/ '$SCRATCH/in'   its content; the box's own variable
holdfast push --dry-run gpu1 a.bin b.bin /data what would be sent"""


@click.command(short_help=SUMMARIES["push"], epilog=EPILOG)
@click.argument("place", shell_complete=complete_places)
@click.argument("paths", metavar="LOCAL... REMOTE_DIR", nargs=-1, required=True, type=PATH)
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, place: str, paths: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Push files and directories of this machine into REMOTE_DIR of PLACE.

    Only what is missing or different there is sent, and each file stands under its name when it is whole and proven by
    SHA-256. Nothing there is removed. A directory goes by its name; with a slash behind it its content does. What was
    cut off is gone on with by the same command. A roster of all files stays beside them (.holdfast-roster), by which
    preflight proves the `data` of a job.

    `.holdfastignore` at the top of a directory leaves files out. Private keys are never sent.
    """
    if len(paths) < 2:
        raise UsageError("push takes: PLACE LOCAL... REMOTE_DIR", hint=_propose(place, paths[0]))
    progress = CopyProgress("hashed ")
    try:
        box = open_box(find_place(place))
        data = read_data(paths[:-1], os.environ, tell=progress.count)
        progress.end()
        progress = CopyProgress()
        for text in data.warnings:
            note(text)
        done = push_data(box, data, paths[-1], dry_run=dry_run, tell=progress.tell, say=note)
    except StorageError as error:
        home = os.path.expanduser("~")
        if place == "local" or os.strerror(errno.EACCES) not in str(error) or not paths[-1].startswith(f"{home}/"):
            raise
        meant = shlex.quote(f"~{paths[-1].removeprefix(home)}")
        hint = f"{home} is the home of this machine; in quotes, {meant}, it is the one of {place}"
        raise StorageError(str(error), hint=hint) from error
    except KeyboardInterrupt:
        progress.end()
        note(f"stopped; {GOES_ON}")
        return EXIT_STOPPED
    finally:
        progress.end()
    if as_json:
        print_record(done)
    else:
        print(_describe(done))
    return 0


def _propose(place: str, path: str) -> str:
    """The command that was meant; who writes it as for scp has the place behind."""
    name, colon, there = path.partition(":")
    if not colon:
        return f"holdfast push {shlex.quote(place)} {shlex.quote(path)} '~/data'"
    there = there if is_own(there) else f"~/{there}"
    return f"holdfast push {shlex.quote(name)} {shlex.quote(place)} {shlex.quote(there)}"


def _describe(done: Pushed) -> str:
    name = f"{done.place}:{clean(done.directory)}"
    whole = f"{_count(done.files)}, {format_bytes(done.total_bytes)}"
    others = f"; {_count(done.others)} that were pushed earlier stay" if done.others else ""
    replaced = f", of which {done.replaced} replace others" if done.replaced else ""
    if done.dry_run:
        what = f"{_count(done.sent)}, {format_bytes(done.bytes)}" if done.sent else "nothing"
        return f"{name}: {what} of {whole} would be sent{replaced}{others} (dry run)"
    if not done.sent:
        return f"{name}: {whole}, all there and proven; nothing was sent{others}"
    return f"{name}: {whole}, proven; sent {_count(done.sent)}, {format_bytes(done.bytes)}{replaced}{others}"


def _count(files: int) -> str:
    return format_count(files, "file")
