# sharequeue: `make help` lists what there is.
#
# Every target makes its own environment in .venv first, when it is not there or pyproject.toml has changed.
# The stamp .venv/.ready is written last, so a set-up that was killed is done again from the start.

.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What builds the documentation stands apart: nothing else needs it.
DOCS := $(VENV)/docs
# What locks and audits the packages, too.
TOOLS := $(VENV)/tools
PYTEST_ARGS ?=
# Two at a time, a file of tests whole. Three are no faster on two cores.
PYTEST_WORKERS ?= 2

.PHONY: help demo test test/deep up down status ui reset doctor check audit lock format bench docs pictures

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z/-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## run the main job on 336,776 real flights: set up, start the stack, process, report
	@$(BIN)/python -m orchestration.demo

test: $(READY) ## run every ordinary test, against servers of its own
	@$(BIN)/python -m pytest --numprocesses $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test/deep: $(READY) ## a million random steps, every rule broken on purpose, a thousand kills (an hour)
	@$(BIN)/python -m pytest -p no:cacheprovider --capture=sys --deep -o python_files="test_*.py deep_*.py" $(PYTEST_ARGS)

up: $(READY) ## start the embedded stack (Postgres, Kafka, service); harmless when it runs
	@$(BIN)/sharequeue up

down: $(READY) ## stop the embedded stack; the data stay
	@$(BIN)/sharequeue down

status: $(READY) ## say what runs, and where
	@$(BIN)/sharequeue status

ui: $(READY) ## start Dagster's webserver and daemon against the stack, and print the URL
	@$(BIN)/sharequeue up --ui

reset: $(READY) ## stop the stack and remove its data (asks first; YES=1 leaves the question out)
	@$(BIN)/sharequeue reset --execute $(if $(YES),--yes)

doctor: $(READY) ## check this machine, the servers, the schema and the clock
	@$(BIN)/sharequeue doctor

check: $(READY) ## lint, format, types, import contracts, known faults of packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory audit

audit: $(READY) ## look for known faults in the packages of requirements.lock, where the index tells
	@$(MAKE) --no-print-directory $(TOOLS)/.ready || true
	@$(BIN)/python -m tests.audit $(TOOLS)/bin/pip-audit

# For all Pythons and platforms at once, with hashes. `--upgrade`: the newest that the bounds of pyproject.toml allow.
LOCK := $(TOOLS)/bin/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: $(TOOLS)/.ready ## renew the lock files: exact versions and hashes of all packages
	@$(LOCK) --extra dagster --extra service --extra embedded --extra java --extra dev --output-file requirements.lock
	@$(LOCK) docker/requirements.in --constraint requirements.lock --extra dagster --extra service \
	    --output-file docker/requirements.lock

format: $(READY) ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## run the benchmarks, each a question with a table
	@set -e; for script in benchmarks/bench_*.py; do \
	    [ -e "$$script" ] || { echo "benchmarks/ holds no bench_*.py"; exit 1; }; \
	    echo "== $$script"; $(BIN)/python "$$script"; \
	done

docs: $(DOCS)/.ready ## build the documentation as a site in dist/site
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	@echo "dist/site/index.html"

pictures: $(READY) ## take pictures of the service's pages, of a running `make ui` and of its report, with Chromium, into docs/pictures
	@PICTURES_FOLDER=docs/pictures $(BIN)/python -m pytest -q -p no:cacheprovider --deep -o python_files=deep_pages.py tests/deep/deep_pages.py
	@$(BIN)/python -m orchestration.pictures

$(DOCS)/.ready: pyproject.toml | $(READY)
	@$(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

$(TOOLS)/.ready: pyproject.toml | $(READY)
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["tools"])')
	@touch $@

$(READY): pyproject.toml
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
	    echo "$$version cannot make environments: install its venv module (Debian and Ubuntu: apt install $$version-venv), then run make again." >&2; \
	    exit 1; \
	fi; \
	if [ ! -e $(READY) ] || ! $(BIN)/python -c '' 2>/dev/null; then \
	    echo "Making the environment in $(VENV) with $$("$$python" --version) (about two minutes, 1.7 GB)"; \
	    rm -f $(READY); \
	    "$$python" -m venv --clear $(VENV); \
	fi; \
	if [ -n "$$brings" ]; then echo "There is no Java 17 or 21: one of its own comes with the environment (101 MB)"; fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 \
	    -e ".[dagster,service,embedded,dev$${brings:+,$$brings}]" || { \
	    echo "The packages could not be installed (see above); is the network up? Run make again." >&2; exit 1; \
	}; \
	touch $(READY)
