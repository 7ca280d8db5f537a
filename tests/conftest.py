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
