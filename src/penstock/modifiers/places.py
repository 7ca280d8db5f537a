"""Where an error of a rule is: the file and line of its entry, or of what in it is wrong."""

from __future__ import annotations


def located(place: str, where: str) -> str:
    """The place of a rule's entry before where the error is, unless that begins with one in the same file."""
    if not place:
        return where
    file, _, line = place.rpartition(":")
    is_inside = where.startswith((f"{place}.", f"{file}:" if line.isdigit() else f"{place} "))
    if is_inside or f" {place} " in f" {where} ":
        return where
    return f"{place} {where}".strip()
