"""Packages that only some sinks and logs need, and that are installed as extras (`penstock[kafka]` and so on)."""

from __future__ import annotations

import importlib.util

from penstock.errors import PackageMissing


def require_package(module: str, extra: str, place: str) -> None:
    """Make sure that a package is installed, before anything imports it.

    Raises:
        PackageMissing: it is not.
    """
    if importlib.util.find_spec(module) is None:
        raise PackageMissing(
            f"needs the package {module}, which is not installed",
            place,
            f"pip install 'penstock[{extra}]', on the driver and on all executors",
        )
