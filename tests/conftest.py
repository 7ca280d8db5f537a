"""Loads the fixtures: every fix_<subject>.py beside this file."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Before penstock is imported: what merely waits does so for a tenth of its time, here and in every
# process that a test starts. Only the catalog is asked less often: a connection each time, by every
# pipeline, took a tenth of a core. And a killed member of a group of Kafka's, whom a newcomer waits for
# to say good-bye, is given up sooner than brokers as they are shipped allow; that of the tests does.
os.environ.setdefault("PENSTOCK_TIMING", "0.1 membership_poll_seconds=0.5 kafka_session_seconds=2")

# Under nohup it is ignored, in each process that a test starts as well: penstock leaves it so, and tests that send it wait
# for nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples on every run; a search for new ones is a deliberate act (HYPOTHESIS_SEED, or
# --hypothesis-profile default).
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))
# Spark's Python workers import them, too: a sink that tests alone have is made in tasks.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
# All at once and first, because they import one another.
pytest.register_assert_rewrite(*pytest_plugins)

from fix_machine import memory_disk  # noqa: E402 - rewritten as well

# Written by archive_classes.py, where make runs the tests. Its path is a word among others.
_CLASSES = Path(__file__).parents[1] / ".pytest_cache" / "spark-classes.jsa"
if _CLASSES.exists() and " " not in str(_CLASSES):
    # What starts so often and lives so shortly is not worth the better of the two compilers.
    os.environ.setdefault(
        "SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={_CLASSES} -XX:TieredStopAtLevel=1"
    )

# The directories of tests. Spark's stay where they are: its programs run from there.
if (_place := memory_disk()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_place))


# What a test says of the newest Postgres it says of 15 as well, in the long tests; quickly only where
# the two speak differently: what the server sends, what it lets us create, what it refuses.
_QUICK_ON_15 = frozenset(
    {
        "test_embedded_postgres.py",
        "test_membership.py",
        "test_preflight.py",
        "test_stream_to_postgres.py",
        "test_subscription.py",
        "test_types.py",
        "test_use_cases.py",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most tests on the older version to the long ones, and the second way to begin."""
    for item in items:
        called = getattr(item, "callspec", None)
        if called is None:
            continue
        is_older = called.params.get("server") == "15" and item.path.name not in _QUICK_ON_15
        if is_older or called.params.get("snapshot") == "never":
            item.add_marker(pytest.mark.long)
