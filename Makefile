# make run     serve the app          make check   formatting, lint, types, import contracts, doctests
# make test    the tests of a merge   make format  rewrite the code in the project's format
# make test-all    every test: the same behaviour on yet another network, format, browser or processor
# make test-quick  the tests of a minute: no browser, no other libraries, few architectures, nothing slow
# make test-processors  the tests of runtimes and int8 files as other processors would run them
# make bench   the benchmarks         make lock    write constraints.txt from what is installed
# make soak    the long forms of the tests on what a team relies on: docs/RELIABILITY.md
# make docs    the documentation as a site in site/, with its notebooks executed
# make upgrade-check  what breaks with the newest versions of everything, in an environment of its own
# make range-check  the package at both ends of the ranges of pyproject.toml; RANGE_PYTHON names another Python

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-all test-quick test-processors check format lock docs bench soak upgrade-check range-check

PORT ?= 8501
WORKERS ?= 2
RANGE_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
PIP_GROUPS = $(PIP_INSTALL) "pip>=25.1"  # the one that comes with Python 3.11 knows no groups
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
QUICK := not (browser or peer or architectures or slow or wide)
UPGRADE := .cache/upgrade-check

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

run: $(RUNTIME)
	@MALLOC_ARENA_MAX=1 exec $(BIN)/python -m senseapp.app.server.serve --server.port $(PORT)

# Workers share the cores: one thread each; on two cores two are quicker than three (312 and 333 s), as servers and
# browsers of the tests fill what is idle. Files stay whole, so that their servers and networks are made once;
# tests/scheduling.py says which of them go together and which first. Bytecode is kept whatever the environment says:
# without it each worker, server and job would compile everything again.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(DEV)
	@$(BIN)/python scripts/ensure_browser.py
	@$(PYTEST)

test-all: $(DEV)
	@$(BIN)/python scripts/ensure_browser.py
	@$(PYTEST) -m ""

test-quick: $(DEV)
	@$(PYTEST) -m "$(QUICK)" --ignore=tests/browser --ignore=tests/cluster

test-processors: $(DEV)
	@$(BIN)/python -m scripts.processors

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.compression_names
	$(BIN)/python -m scripts.markup
	$(BIN)/python -m pytest -q --doctest-modules senseapp --ignore senseapp/runtimes/litert --ignore senseapp/runtimes/qnn

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.real
	$(BIN)/python -m benchmarks.adapt
	@$(BIN)/python scripts/ensure_browser.py
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python -m benchmarks.answer

soak: $(DEV)
	$(BIN)/python -m soak.kills_in_measuring 50
	$(BIN)/python -m soak.kills
	$(BIN)/python -m soak.crowd 20
	$(BIN)/python -m soak.day
	$(BIN)/python -m soak.hostile
	$(BIN)/python -m soak.hostile --files 200 --only lying
	$(BIN)/python -m soak.hostile --files 100 --only "slow picture"
	$(BIN)/python -m soak.slow_pictures
	$(BIN)/python -m soak.onnx
	$(BIN)/python -m soak.hostile_checks
	$(BIN)/python -m soak.forged_states
	$(BIN)/python -m soak.device_times
	$(BIN)/python -m soak.annotations
	$(BIN)/python -m soak.large_run_files
	$(BIN)/python -m soak.uploads
	$(BIN)/python -m soak.downloads
	$(BIN)/python -m soak.two_people
	$(BIN)/python -m soak.strangers
	$(BIN)/python -m soak.cli_fuzz
	$(BIN)/python -m soak.families

# The pins of requirements become lower bounds; pip's own configuration still holds. docs/UPGRADES.md keeps what was found.
upgrade-check: $(BIN)/python
	@rm -rf $(UPGRADE); mkdir -p $(UPGRADE)
	@sed 's/==/>=/' requirements.txt > $(UPGRADE)/requirements.txt
	@$(BIN)/python -m venv $(UPGRADE)/venv
	@$(UPGRADE)/venv/bin/python -m pip install --quiet --upgrade pip
	@$(UPGRADE)/venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --upgrade \
	   --upgrade-strategy eager --requirement $(UPGRADE)/requirements.txt --group dev
	@{ diff <($(BIN)/python -m pip freeze) <($(UPGRADE)/venv/bin/python -m pip freeze) || true; } | grep '^>' || echo "nothing is newer"
	@$(UPGRADE)/venv/bin/python -m pytest -q tests/unit/compat/test_compat.py
	@touch $(UPGRADE)/venv/.dev-installed
	@$(MAKE) --no-print-directory test-quick VENV=$(UPGRADE)/venv

range-check: $(DEV)
	$(BIN)/python -m scripts.range_check lowest --python $(RANGE_PYTHON)
	$(BIN)/python -m scripts.range_check newest --python $(RANGE_PYTHON)

docs: $(DOCS)
	@PYTHONPATH="$(CURDIR)" OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean
	@echo "site/index.html"

lock: $(DEV)
	@{ echo "# Every package of the environment, pinned; made by \`make lock\`."; \
	   $(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable | LC_ALL=C sort --ignore-case; } > constraints.new
	@mv constraints.new constraints.txt
	@echo "constraints.txt: $$(grep -c == constraints.txt) packages"

$(BIN)/python:
	@for candidate in python3.11 python3; do \
	   if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	 done; \
	 if [ -z "$${found:-}" ]; then echo "senseapp needs Python 3.11 or newer; install python3.11 and try again." >&2; exit 1; fi; \
	 echo "Making $(VENV) with $$("$$found" --version)"; \
	 "$$found" -m venv $(VENV) || { rm -rf $(VENV); \
	   echo "$$found cannot make virtual environments; on Debian install python3-venv and try again." >&2; exit 1; }

$(RUNTIME): requirements.txt constraints.txt | $(BIN)/python
	@echo "Installing what the app needs (the first time: a few minutes, about 6 GB)"
	@$(PIP_INSTALL) --requirement requirements.txt
	@touch $@

$(DEV): pyproject.toml requirements.txt constraints.txt | $(BIN)/python
	@echo "Installing what the app and its tests need (the first time: a few minutes, about 6 GB)"
	@$(PIP_GROUPS)
	@$(PIP_INSTALL) --requirement requirements.txt --group dev
	@touch $@ $(RUNTIME)

$(DOCS): pyproject.toml constraints.txt | $(RUNTIME)
	@echo "Installing what the documentation is built with"
	@$(PIP_GROUPS)
	@$(PIP_INSTALL) --group docs
	@touch $@
