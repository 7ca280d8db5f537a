"""PEN-1xx: the command line or the file is wrong; exit code 2."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


class PipelineFileError(PenstockError):
    """The file does not read or does not parse."""

    code = "PEN-101"
    remedy = Remedy.OPERATOR
    exit_code = 2


class UnknownKey(PipelineFileError):
    """A key that no part of penstock knows."""

    code = "PEN-102"


class BadValue(PipelineFileError):
    """A known key, or an option of a command, with a value it cannot take."""

    code = "PEN-103"


class MissingVariable(PipelineFileError):
    """The file names an environment variable that is not set."""

    code = "PEN-104"


class NotThereYet(PipelineFileError):
    """A key of the pipeline file that this version does not carry out."""

    code = "PEN-105"


class BadUrl(PipelineFileError):
    """A connection URL that libpq cannot read."""

    code = "PEN-106"


class BadTableRule(PipelineFileError):
    """A rule of an include or exclude list that cannot name tables."""

    code = "PEN-107"
