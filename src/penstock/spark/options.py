"""What a person may say about Spark. Does not import pyspark."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.options import Options, wanted


def _as_text(given: Any) -> Any:
    """A number or a truth value of a JSON document, spelt as Spark spells it."""
    if isinstance(given, bool):
        return str(given).lower()
    return str(given) if isinstance(given, int | float) else given


def _check_master(given: str) -> str:
    # The masters Spark 4 has; no @, so that no URL with a password passes for one.
    if not given.startswith(("local", "spark://", "k8s://", "yarn")) or "@" in given:
        raise wanted("local[*], spark://host:7077, k8s://host or yarn")
    return given


class SparkOptions(Options):
    """Where jobs run, and settings that are handed to Spark as they are."""

    master: Annotated[str, AfterValidator(_check_master)] = "local[*]"
    # Not in repr: keys of object stores are set here.
    conf: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(default={}, repr=False)

    def encrypting(self) -> Self:
        """The same, with what Spark leaves on disks encrypted: results of tasks, for one."""
        return self.model_copy(
            update={"conf": {"spark.io.encryption.enabled": "true", **self.conf}}
        )

    @property
    def is_local(self) -> bool:
        """Whether all of Spark is on this machine."""
        return self.master.startswith("local")
