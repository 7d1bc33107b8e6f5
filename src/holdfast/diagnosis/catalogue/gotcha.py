"""One row of the catalogue."""

from __future__ import annotations

from enum import Enum

from holdfast.model.record import record


class GotchaMode(str, Enum):
    """What holdfast does about a gotcha."""

    PREVENTED = "prevented"
    """It cannot happen to a run of ours."""
    DETECTED = "detected"
    """It is seen and named, before or after."""
    REMEDIED = "remedied"
    """Something is done about it, by itself or with one confirmed command."""
    LATER = "later"
    """Not by this version; `Gotcha.reason` says why."""


@record
class Gotcha:
    """A way to lose time, money or results, in our own words.

    `signals` is what can be read, `does` what holdfast does, `remedy` what a person does. `code` names our modules
    (``core.run.lifecycle``) that do it. `source` says where the facts are from, `checked` when they were last looked at
    (year-month). `keywords` are words that people search by. `reason` says what is not done, and why.
    """

    id: str
    title: str
    symptom: str
    cause: str
    signals: str
    does: str
    remedy: str
    modes: tuple[GotchaMode, ...]
    source: str
    code: tuple[str, ...] = ()
    reason: str = ""
    keywords: str = ""
    checked: str = "2026-11"

    def headline(self) -> str:
        """Id, title and keywords, for searching."""
        return f"{self.id} {self.title} {self.keywords}".lower()

    def words(self) -> str:
        """All of its text, for searching."""
        seen, done = f"{self.symptom} {self.cause} {self.signals}", f"{self.does} {self.remedy} {self.reason}"
        return f"{self.headline()} {seen} {done}".lower()
