"""What a person may say about the sink that prints: nothing but what every sink has."""

from typing import Literal

from penstock.options import SinkOptions


class StdoutOptions(SinkOptions):
    """Documents on standard output."""

    kind: Literal["stdout"] = "stdout"
