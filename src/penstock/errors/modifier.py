"""PEN-7xx: what `modifiers:` says of tables, and rows that it cannot be done to."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


class ModifierError(PenstockError):
    """A rule of `modifiers:` cannot be carried out; its table stops before a row passes."""

    code = "PEN-700"
    remedy = Remedy.OPERATOR


class RuleUnfit(ModifierError):
    """A rule names a column that the table has not, or asks something that its type does not have."""

    code = "PEN-701"


class ValueNotSent(ModifierError):
    """A rule needs a value that the source has not sent, since the UPDATE left it alone."""

    code = "PEN-702"


class ExpressionFails(ModifierError):
    """An SQL expression of a rule cannot be computed for a row."""

    code = "PEN-703"


class RulesEdited(ModifierError):
    """Rows that are there followed other rules than the file has now. A warning."""

    code = "PEN-704"


class SqlMissing(ModifierError):
    """A rule is SQL, and the package that computes it is not installed."""

    code = "PEN-705"
