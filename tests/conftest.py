"""Loads the fixtures: every fix_<subject>.py beside this file."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run; a search for new ones is a deliberate act (HYPOTHESIS_SEED, or
# --hypothesis-profile default).
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))
# All at once and first, because they import one another.
pytest.register_assert_rewrite(*pytest_plugins)


# They take minutes on each version of Postgres, so that the older one has its turn with the long tests.
_LONG_ON_15 = frozenset(
    {
        "test_follow.py",
        "test_follow_random.py",
        "test_tracking.py",
        "test_tracking_installed.py",
        "test_tracking_versions.py",
        "test_travel.py",
        "test_travel_random.py",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what is so on the older version."""
    for item in items:
        called = getattr(item, "callspec", None)
        if item.path.name in _LONG_ON_15 and called and called.params.get("server") == "15":
            item.add_marker(pytest.mark.long)
