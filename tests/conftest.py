"""Loads the fixtures: every fix_<subject>.py beside this file."""

from pathlib import Path

import pytest

pytest_plugins = sorted(path.stem for path in Path(__file__).parent.glob("fix_*.py"))
# All at once and first, because they import one another.
pytest.register_assert_rewrite(*pytest_plugins)
