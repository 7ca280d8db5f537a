"""PEN-71x: rules that change values."""

from __future__ import annotations

from penstock.errors.modifier import ModifierError


class ColumnUncovered(ModifierError):
    """A column without a rule, where every column must have one."""

    code = "PEN-711"


class TransformFailed(ModifierError):
    """A value that a rule cannot be applied to."""

    code = "PEN-712"


class CryptoMissing(ModifierError):
    """A rule needs the package that encrypts, which is not installed."""

    code = "PEN-713"
