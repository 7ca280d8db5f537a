"""Pipeline files for tests, and fixtures that read one from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.config import PipelineFile, read_pipeline
from penstock.errors import PenstockError, PipelineFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CANARY = "hunter2-canary"
ENVIRON = {"SHOP_URL": f"postgresql://ana:{CANARY}@db1:5432/shop", "RETAIN": "512MiB"}

FULL = """\
name: shop
state: ./shop-state
source:
  url: ${SHOP_URL}
  tables: {include: ["public.*"], exclude: [audit]}
  insert_only: [events]
  snapshot: never
  schema: {tracking: off}
  acknowledge: logged
  heartbeat_seconds: ${HEARTBEAT:-2.5}
log: {kind: files, retain_bytes: 10GB}
modifiers: []
sinks:
  warehouse:
    kind: postgres
    url: ${SHOP_URL}
    schema: dw
    create_tables: no
    create_indexes: false
    source_id_column: null
    on_conflict: keep
    tables:
      public.orders: {kind: clone, columns: [id, total]}
  lines: {kind: file, path: out/changes, rotate_bytes: 1.5MiB, rotate_seconds: 60}
  screen: {kind: stdout}
spark: {master: "local[2]", conf: {spark.ui.enabled: false}}
"""

SMALL = """\
name: shop
source: {url: "postgresql://db1/shop", tables: [orders]}
sinks: {screen: {kind: stdout}}
"""


@pytest.fixture
def pipeline_of(tmp_path: Path) -> Callable[..., PipelineFile]:
    def pipeline_of(text: str | bytes, environ: dict[str, str] = ENVIRON) -> PipelineFile:
        path = tmp_path / "shop.yml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_pipeline(path, environ)

    return pipeline_of


@pytest.fixture
def fault_of(pipeline_of, tmp_path) -> Callable[..., PenstockError]:
    """The error of a file; places are shortened to `shop.yml:<line>`."""

    def fault_of(text: str | bytes, environ: dict[str, str] = ENVIRON) -> PenstockError:
        with pytest.raises(PipelineFileError) as caught:
            pipeline_of(text, environ)
        error = caught.value
        assert CANARY not in str(error)
        assert error.__cause__ is None
        assert error.do
        assert error.exit_code == 2
        return type(error)(error.what, error.where.removeprefix(f"{tmp_path}/"), error.do)

    return fault_of
