# Every target sets up what it needs and is quick when that is there already.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The tests start hundreds of Pythons; where bytecode may not be kept, each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PYTHON := $(VENV)/bin/python
UV_VERSION := 0.13.7
# Each stays on one processor: two for each of two processors keep both busy while a test waits.
WORKERS ?= 4
# A whole run that takes longer than this has hung: it is interrupted and reports what it was doing.
TEST_LIMIT ?= 1200
ALL_LIMIT ?= 2400
LOAD_LIMIT ?= 3600
SOAK_LIMIT ?= 86400
ROUNDS ?= 3
PYTEST_ARGS ?=
CHAOS_ARGS ?=
# A file stays with one worker, so that what its tests share is started once.
PYTEST := $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
LIMIT = timeout --foreground --signal=INT --kill-after=60

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: $(VENV)/ready servers ui-or-not ## The short suite: each promise once, on the three databases
	$(LIMIT) $(TEST_LIMIT) $(PYTEST) $(PYTEST_ARGS)

.PHONY: test-all
test-all: $(VENV)/ready servers ui-or-not ## All tests, and the coverage of every package
	@rm -rf .coverage
	MYRMIDON_COVERAGE=1 $(LIMIT) $(ALL_LIMIT) $(PYTEST) --all $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory coverage-report

.PHONY: test-under-load
test-under-load: $(VENV)/ready servers ## All tests ROUNDS times while stress-ng loads processors and disk
	tools/test-under-load $(ROUNDS) $(LIMIT) $(LOAD_LIMIT) $(PYTEST) --all $(PYTEST_ARGS)

.PHONY: soak
soak: $(VENV)/ready servers ## The long versions of the tests
	$(LIMIT) $(SOAK_LIMIT) $(PYTEST) --soak -m soak $(PYTEST_ARGS)

.PHONY: check
check: $(VENV)/ready ## Lint, the import contract, types and the structure tests
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy src tests $(wildcard bench)
	$(PYTHON) -m pytest -q tests/architecture
	@$(PYTHON) -m tests.architecture.sizes
	@$(MAKE) --no-print-directory ui-check

.PHONY: coverage
coverage: $(VENV)/ready servers ## Only the branch coverage (part of `make test-all`)
	@rm -rf .coverage
	MYRMIDON_COVERAGE=1 $(LIMIT) $(ALL_LIMIT) $(PYTEST) --all -q -m "not untraced" $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory coverage-report

.PHONY: coverage-report
coverage-report:
	@$(PYTHON) -m coverage combine --quiet
	@$(PYTHON) -m tests.tracing
	@$(PYTHON) -m coverage report --include='src/myrmidon/scheduler/*' --fail-under=95

.PHONY: planted
planted: $(VENV)/ready servers ## Plant known bugs, and see that the tests catch every one
	$(PYTHON) -m tests.planted

# Two minutes on each database; CHAOS_ARGS="--databases postgresql --seconds 1800 --servers 2" is half an hour on one.
.PHONY: chaos
chaos: $(VENV)/ready servers ## Work on a real system while everything breaks, and a check of each promise
	$(PYTHON) -m tests.chaos $(CHAOS_ARGS)

.PHONY: bench
bench: $(VENV)/ready ## The speed of the whole: commands on real bots, output, a large idle fleet
	$(PYTHON) -m bench

# Installed for comparison only; a missing one prints "missing" for its bars.
.PHONY: bench-peers
bench-peers: ## Install the systems that `make bench` compares functions with: Ray, and BullMQ with Redis
	python3 -m venv build/peers/ray
	build/peers/ray/bin/pip install --quiet ray
	mkdir -p build/peers/node
	npm install --silent --no-audit --no-fund --prefix build/peers/node bullmq ioredis
	command -v redis-server > /dev/null || apt-get install -y --no-install-recommends redis-server

.PHONY: bench-core
bench-core: $(VENV)/ready servers ## The speed of the core on the three databases, fully durable
	$(PYTHON) -m bench.core

.PHONY: bench-ui
bench-ui: $(VENV)/ready ui ## The web page with a million tasks: lists, first view, graph, log, memory
	$(PYTHON) -m bench.ui

FIRST_TASK = sh -c 'echo "Hello from $$(hostname), which runs its first task."; uname -sr'
UP = $(VENV)/bin/myrmidon up --bots 2 --data-dir build/run

# The web page, built once from ui/. Without Node the server says on that page that it was not built; the rest works.
PAGE := src/myrmidon/server/web/static/index.html
UI_SOURCES = $(shell find ui -name node_modules -prune -o -type f ! -name schema.d.ts ! -name openapi.json -print)

.PHONY: ui
ui: $(PAGE) ## Build the web page
$(PAGE): $(UI_SOURCES) | $(VENV)/ready
	tools/ui build && touch $@

.PHONY: ui-or-not
ui-or-not: $(VENV)/ready
	@$(MAKE) --no-print-directory ui || echo "The server starts without its web page."

.PHONY: ui-check
ui-check: $(VENV)/ready ## Lint, types and unit tests of the web page
	@tools/ui check || [ $$? = 3 ]

.PHONY: ui-dev
ui-dev: $(VENV)/ready ## The web page for people who work on it, with a running server: see docs/ui-development.md
	tools/ui dev

.PHONY: run
run: $(VENV)/ready ui-or-not ## A server and two bots, and a first task; stays up until Ctrl-C
	@$(UP) -- $(FIRST_TASK)

.PHONY: demo
demo: $(VENV)/ready ## The same, and ends
	@$(UP) --port 0 --once -- $(FIRST_TASK)

.PHONY: fix
fix: $(VENV)/ready ## Format, and repair what the linter can repair
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

.PHONY: clean
clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist ui/node_modules ui/openapi.json ui/src/api/schema.d.ts $(dir $(PAGE))
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2> /dev/null || true

# --- What the targets stand on ---

.PHONY: setup
setup: $(VENV)/ready servers ## Only set up: the virtual environment and the database servers

# Installed from uv.lock. Where uv cannot fetch (a machine whose packages come through pip's own settings), pip
# installs the same versions with the same hashes: see docs/decisions/0001-locked-dependencies.md.
$(VENV)/ready: pyproject.toml uv.lock | $(VENV)/bin/uv
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(VENV)/bin/uv sync --quiet --locked --inexact --python $(VENV)/bin/python || { \
	    echo "uv could not install from uv.lock; pip does it, with the same hashes"; \
	    $(VENV)/bin/uv export --quiet --frozen --no-emit-project --output-file $(VENV)/requirements.txt; \
	    $(PYTHON) -m pip install --quiet --require-hashes -r $(VENV)/requirements.txt; \
	    $(PYTHON) -m pip install --quiet --no-deps --editable .; }
	@touch $@

$(VENV)/bin/uv:
	@tools/make-venv $(VENV)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.PHONY: servers
servers: $(VENV)/servers
$(VENV)/servers: | $(VENV)/bin/uv
	@tools/install-servers && touch $@ || [ $$? = 3 ]
