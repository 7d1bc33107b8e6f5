"""``holdfast reconcile PLACE``: what this desk knows of a place's runs, made again from the place."""

from __future__ import annotations

from holdfast.desk.connect import find_place, open_box
from holdfast.desk.runs.reconcile import ReconciledPlace, reconcile_place


def reconcile_named(name: str) -> ReconciledPlace:
    """As `reconcile_place`, by the place's name."""
    return reconcile_place(find_place(name), open_box=open_box)
