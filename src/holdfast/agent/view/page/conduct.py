"""The rules as they are held on this box: ours, and those of its rules file."""

from __future__ import annotations

import os

from holdfast.core.rules.conduct import CONDUCT, ConductRule, describe_site
from holdfast.host.files.rules_file import read_rules
from holdfast.model.record import record


@record
class Conduct:
    """All rules; `site` is what the rules file of the box says, key to words, read from `sources` (none: no file)."""

    rules: tuple[ConductRule, ...]
    site: dict[str, str]
    sources: tuple[str, ...]


def read_conduct() -> Conduct:
    """The rules of this box.

    Raises:
        HoldfastError: its rules file cannot be read.
    """
    rules = read_rules(os.environ)
    return Conduct(CONDUCT, dict(describe_site(rules)), rules.sources)
