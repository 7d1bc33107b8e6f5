"""Stand-ins for cron's and systemd's commands: they keep what they were told in their own directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CRONTAB = """#!/bin/sh
table={state}/table
case "$1" in
  -l) if [ -e "$table" ]; then cat "$table"; else echo "no crontab for $USER" >&2; exit 1; fi ;;
  -r) rm -f "$table" ;;
  -) cat > "$table" ;;
  *) echo "usage" >&2; exit 2 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {state}/calls
"""


def make_clocks(place: Path) -> Path:
    """The commands in a new directory, to be put on PATH; the table of cron is ``table``, calls are in ``calls``."""
    place.mkdir()
    for name, text in (("crontab", CRONTAB), ("systemctl", SYSTEMCTL)):
        script = place / name
        script.write_text(text.format(state=place))
        script.chmod(0o755)
    return place


def with_clocks(clocks: Path, *names: str) -> dict[str, str | None]:
    """An environment in which these clocks exist, and no other."""
    for name in ("crontab", "systemctl"):
        if name not in names:
            (clocks / name).unlink(missing_ok=True)
    return {"PATH": f"{clocks}:/bin"}
