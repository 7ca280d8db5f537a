"""What a person may say about the sink that prints: nothing but its kind."""

from typing import Literal

from penstock.options import Options


class StdoutOptions(Options):
    """Documents on standard output."""

    kind: Literal["stdout"] = "stdout"
