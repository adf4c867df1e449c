# sharequeue: `make help` lists the targets.
#
# Every target first creates the environment in .venv if it is missing, or pyproject.toml or
# tools/constraints.txt has changed.
# The stamp .venv/.ready is written last, so that a set-up that was killed starts again from the beginning.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tools that build the documentation are separate: nothing else needs them.
DOCS := $(VENV)/docs
# So are the tools that lock and audit the packages.
TOOLS := $(VENV)/tools
# A run of Dagster or of the tests starts dozens of processes, and none should compile our modules again.
export PYTHONDONTWRITEBYTECODE :=
PYTEST_ARGS ?=
# All tests of a file run in one worker. Four on two cores, because many tests wait for servers. Each needs about 3 GB,
# beside what else runs: three where there are not 20 GB, two where there are not 12.
PYTEST_WORKERS ?= $(shell awk '/^MemTotal/ {print $$2 < 12000000 ? 2 : $$2 < 20000000 ? 3 : 4}' /proc/meminfo \
    2>/dev/null || echo 2)

.PHONY: help demo test test/deep up down status ui reset doctor check types contracts audit lock format bench docs pictures release

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z/-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## run the main job on 336,776 real flights: set up, start the stack, process, report
	@$(BIN)/python -m orchestration.demo

test: $(READY) ## run all tests but the deep ones, with their own servers
	@$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test/deep: $(READY) ## a million random steps, every rule broken on purpose, a thousand kills (an hour)
	@$(BIN)/python -m pytest -p no:cacheprovider --capture=sys --deep -o python_files="test_*.py deep_*.py" $(PYTEST_ARGS)

up: $(READY) ## start the embedded stack (Postgres, Kafka, service), unless it is running
	@$(BIN)/sharequeue up

down: $(READY) ## stop the embedded stack; its data are kept
	@$(BIN)/sharequeue down

status: $(READY) ## show the servers of the stack, with their addresses
	@$(BIN)/sharequeue status

ui: $(READY) ## start Dagster's webserver and daemon against the stack, and print the URL
	@$(BIN)/sharequeue up --ui

reset: $(READY) ## stop the stack and remove its data (asks first; YES=1 skips the question)
	@$(BIN)/sharequeue reset --execute $(if $(YES),--yes)

doctor: $(READY) ## check this machine, the servers, the schema and the clock
	@$(BIN)/sharequeue doctor

check: $(READY) ## lint, format, types, import contracts, known vulnerabilities of packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs 3 types contracts audit

# At once: the first takes a minute of one core, and the audit downloads its own tools.
types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports

audit: $(READY) ## list known vulnerabilities of the packages in requirements.lock, if the index has them
	@$(MAKE) --no-print-directory $(TOOLS)/.ready || true
	@$(BIN)/python -m tools.audit $(TOOLS)/bin/pip-audit

# For all Pythons and platforms, with hashes. `--upgrade`: the newest versions that pyproject.toml allows.
LOCK := $(TOOLS)/bin/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(TOOLS)/.ready ## update the lock files: exact versions and hashes of all packages
	@$(LOCK) --constraint tools/constraints.txt \
	    --extra dagster --extra service --extra embedded --extra java --extra dev --output-file requirements.lock
	@$(LOCK) docker/requirements.in --constraint requirements.lock --extra dagster --extra service \
	    --output-file docker/requirements.lock

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

CASES ?= all
bench: $(READY) ## run all benchmarks in their short form, or chosen ones: make bench CASES="P8 P9 --full"
	@$(BIN)/python -m benchmarks $(CASES)

release: $(DOCS)/.ready ## build and try the wheel, then tag it (DRY_RUN=1: no tag); nothing is uploaded
	@$(BIN)/python -m tools.release $(if $(DRY_RUN),--dry-run)

docs: $(DOCS)/.ready ## build the documentation as a site in dist/site
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	@echo "dist/site/index.html"

pictures: $(READY) ## take the pictures of the docs anew, with Chromium, of stacks of their own (five minutes)
	@PICTURES_FOLDER=docs/pictures $(BIN)/python -m pytest -q -p no:cacheprovider --deep \
	    -o python_files="deep_pages.py deep_ui.py" -k "not automation and not ten_thousand" tests/deep

$(DOCS)/.ready: pyproject.toml | $(READY)
	@$(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python tools/installation.py $$($(BIN)/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

$(TOOLS)/.ready: pyproject.toml | $(READY)
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python tools/installation.py $$($(BIN)/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["tools"])')
	@touch $@

$(READY): pyproject.toml tools/constraints.txt
	@set -eu; \
	python=; \
	for candidate in python3.13 python3.12 python3.11 python3 python; do \
	    if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Python 3.11, 3.12 or 3.13 is needed and none is on PATH: install one, then run make again." >&2; exit 1; \
	fi; \
	brings=$$("$$python" sharequeue/local/preflight.py); \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    version=$$("$$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
	    echo "$$version cannot create environments: install its venv module (Debian and Ubuntu: apt install $$version-venv), then run make again." >&2; \
	    exit 1; \
	fi; \
	if [ ! -e $(READY) ] || ! $(BIN)/python -c '' 2>/dev/null; then \
	    echo "Creating the environment in $(VENV) with $$("$$python" --version) (about a minute, 1.7 GB)"; \
	    rm -f $(READY); \
	    "$$python" -m venv --clear $(VENV); \
	fi; \
	if [ -n "$$brings" ]; then echo "Java 17 or 21 was not found: installing one in the environment (101 MB)"; fi; \
	$(BIN)/python tools/installation.py --constraint tools/constraints.txt \
	    -e ".[dagster,service,embedded,dev$${brings:+,$$brings}]" || { \
	    echo "The packages could not be installed (see above). Check the network, then run make again." >&2; exit 1; \
	}; \
	touch $(READY)
