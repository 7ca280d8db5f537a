"""The notes of a table, line by line: which of them are still so, and which are missing. Pure.

A line on an object begins with what it is and its name. Lines on anything else stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sinks.postgres.compare.deviations import ASPECTS
from penstock.sinks.postgres.ddl.structure import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.sinks.postgres.compare.deviations import Deviation

_CONSTRAINTS = ("check constraint ", "unique constraint ", "exclusion constraint ", "primary key ")
_WORDS = ("column ", "index ", "constraint ", "foreign key ", "sequence ", "type ", *_CONSTRAINTS)
# Said of all foreign keys of a table.
_KEYS = "foreign keys"
# It is there, under another name.
_RENAMED = " keeps its name"


def are_on_objects(notes: str | None) -> bool:
    """Whether some line may go when somebody makes what it is about."""
    return any(map(_is_on_object, (notes or "").splitlines()))


def _is_on_object(line: str) -> bool:
    return line.startswith((*_WORDS, _KEYS)) and _RENAMED not in line


def renewed(
    notes: str | None, subjects: Collection[str], lacking: Iterable[Deviation]
) -> str | None:
    """The notes as they are to be: a line for each thing that is `lacking`, none for what is there.

    `subjects` is all that the table is to have: what is not among it is gone at the source. What is meant
    to be lacking gets no line, but keeps the one that it has.
    """
    named = {one_line(subject): subject for subject in subjects}
    left = list(lacking)
    kept: list[str] = []
    said: set[Deviation] = set()
    for line in (notes or "").splitlines():
        if not _is_on_object(line):
            kept.append(line)
            continue
        about = _about(line, named, left)
        if about:
            kept.append(line)
            said.update(about)
    kept += [each.line for each in left if each not in said and not each.reason]
    return "\n".join(kept) or None


def _about(line: str, named: dict[str, str], lacking: list[Deviation]) -> list[Deviation]:
    """What is lacking, of what the line says."""
    if line.startswith(_KEYS):
        return [each for each in lacking if each.is_foreign_key]
    begins = [spelled for spelled in named if _begins(line, spelled)]
    if not begins:
        return []
    longest = max(begins, key=len)
    of_it = [each for each in lacking if each.subject == named[longest]]
    aspects = _aspects(line, longest)
    return [each for each in of_it if not aspects or not each.aspect or each.aspect in aspects]


def _aspects(line: str, spelled: str) -> list[str]:
    """The parts of a column that a line is about; none where it is about all, or about something else."""
    if not line.startswith("column "):
        return []
    rest = line.partition(spelled)[2] if spelled in line else line
    return [aspect for aspect in ASPECTS if aspect in rest]


def _begins(line: str, subject: str) -> bool:
    heads = [subject]
    if subject.startswith(_CONSTRAINTS):
        heads.append(
            subject[subject.index("constraint ") :] if "constraint " in subject else subject
        )
    return any(line == head or line.startswith((f"{head}:", f"{head} ")) for head in heads)
