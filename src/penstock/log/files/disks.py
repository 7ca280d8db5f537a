"""Whether the disks that logs lie on have room for what their options allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.disk import free_bytes
from penstock.errors import DiskFull
from penstock.text import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.errors import PenstockError


def narrow_disks(retain_bytes: int, directories: Iterable[Path]) -> list[PenstockError]:
    """Disks that would be full before the logs on them have reached what `retain_bytes` allows."""
    wanted: dict[int, int] = {}
    places: dict[int, Path] = {}
    for log in directories:
        place = next(each for each in (log, *log.parents) if each.exists())
        device = place.stat().st_dev
        size = sum(each.stat().st_size for each in log.glob("*")) if place == log else 0
        wanted[device] = wanted.get(device, 0) + max(0, retain_bytes - size)
        places[device] = place
    return [
        DiskFull(
            f"{size_text(max(0, found))} are free, less than the {size_text(wanted[device])} that"
            " log.retain_bytes lets the log grow to while a sink is behind; once the disk is full, capture"
            " waits and the source keeps its WAL: nothing is lost",
            str(place),
            f"set log.retain_bytes to what may be used here, such as {_round_size(found)};"
            " or free space, or move `state:` to a larger disk",
        )
        for device, place in places.items()
        if (found := free_bytes(place)) < wanted[device]
    ]


def _round_size(free: int) -> str:
    """About three quarters of what is free, as the pipeline file takes it."""
    megabytes = max(1, free * 3 // 4 // 1_000_000)
    return f"{megabytes}MB" if megabytes < 1000 else f"{megabytes // 1000}GB"
