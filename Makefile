# A machine needs Python 3.11 or newer and make; everything else comes into .venv from the lock.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

# The first interpreter that is new enough; `make PYTHON=/path/to/python …` chooses another.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && command -v $$name && break; done)

# uv works on the project's own environment with the interpreter that made it, whatever the caller's environment says.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON := $(CURDIR)/$(BIN)/python
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
# Without what Python compiles, each of the many processes of a test compiles Airflow, pandas and Spark for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up down quickstart test test-lint test-system test-spark test-parts cluster machine leader events chaos crowd bench sensors javascript dist matrix docs reference fmt fuzz audit walk watched submitted

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## a year of departures through JetStream, Airflow and Spark; ends with the delays by carrier
	$(BIN)/python -m demo run

up: $(READY) ## the same services left running, with the Airflow UI and the DAG ready to trigger
	$(BIN)/python -m demo up

down: $(READY) ## stop what `make up` started
	$(BIN)/python -m demo down

quickstart: $(READY) ## docs/quickstart.md verbatim, pip install and Airflow standalone included; needs the ports 4222 and 8080
	$(BIN)/pytest tests/quickstart.py --capture=no

test: $(READY) ## lint, types, imports and tests
	@$(MAKE) --no-print-directory --jobs=4 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) test-lint test-system test-spark test-parts

test-lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test-system: # what shares one stack of Airflow, in one process, and then what shares one standalone Spark
	$(BIN)/pytest tests/airflow_system
	$(BIN)/pytest tests/cluster

test-spark: # what shares one Spark session, in one process: the longest of the lanes
	$(BIN)/pytest tests/pyspark_jetstream

test-parts: # everything else, beside it: these tests wait more than they compute
	$(BIN)/pytest --numprocesses 3 --ignore tests/airflow_system --ignore tests/pyspark_jetstream --ignore tests/cluster

cluster: $(READY) ## a standalone Spark whose executors hold little, and a job whose executors hold nothing of ours
	$(BIN)/pytest tests/cluster/test_cluster.py tests/cluster/stranger.py

machine: $(READY) ## the hand-off's state machine for longer, and its largest claim; SEED=1 and EXAMPLES=100 choose another walk
	EXAMPLES=$(or $(EXAMPLES),100) $(BIN)/pytest tests/jetstream_handoff/test_machine.py --hypothesis-seed=$(or $(SEED),1) --timeout=0
	SCATTERED=300000 $(BIN)/pytest tests/jetstream_handoff/test_take.py --timeout=0

leader: $(READY) ## three nodes: the leader of a consumer dies while it is consumed from
	$(BIN)/pytest tests/jetstream_client/leader_dies.py

events: $(READY) ## Airflow's own events on the real Airflow, row by row; writes the table in docs/airflow-events.md
	$(BIN)/pytest tests/airflow_system/every_event.py --capture=no

walk: $(READY) ## the connection in Airflow's UI, in headless Chromium: created, tested, used; makes its pictures in docs
	@command -v $${CHROMIUM:-chromium} > /dev/null || { echo "Chromium is needed: apt-get install chromium, or CHROMIUM=/path/to/it" >&2; exit 1; }
	$(BIN)/uv sync --locked --all-extras --group walk
	$(BIN)/pytest tests/walk/connection.py

watched: $(READY) ## the event-driven DAG on the real Airflow: a killed triggerer, and a pause of five times ack_wait
	$(BIN)/pytest tests/airflow_system/watched.py

submitted: $(READY) ## jobs on a real Spark cluster for the real Airflow: the triggerer dies, a task is cleared, a worker dies
	$(BIN)/pytest tests/airflow_system/submitted.py

fuzz: $(READY) ## hostile input, 100,000 cases and more; SEED=1 and CASES=100000 choose others
	SEED=$(or $(SEED),1) CASES=$(or $(CASES),100000) $(BIN)/pytest tests/hostile --timeout=3600

audit: $(READY) ## the locked versions against the OSV database of vulnerabilities, and their licences against our list
	$(BIN)/pip-licenses > /dev/null
	$(BIN)/uv audit --locked

chaos: $(READY) ## SEED=1: 200 kills, freezes and cuts while pipelines run, and what they lost; 40 minutes
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1)

crowd: $(READY) ## 10,000 claims through one consumer by 100 sensors: the ledger's record, lost races, memory
	$(BIN)/python -m tests.chaos.crowd

bench: $(READY) ## ours and the alternatives side by side; prints ratios
	$(BIN)/python -m benchmarks

sensors: $(READY) ## 1,000 sensors in one triggerer: connections, idle processor share, memory, how late a message is; 15 minutes
	$(BIN)/python -m benchmarks.sensors $(or $(SENSORS),1000)

javascript: $(READY) ## nats.js beside this client; needs Node.js
	$(BIN)/python -m benchmarks.javascript

dist: $(READY) ## wheel and sdist in dist/, each installed into a clean environment and looked at by Airflow
	rm -rf dist
	$(BIN)/uv build
	$(BIN)/pytest tests/distribution.py

matrix: $(READY) ## Python 3.11 to 3.13 with the lowest and the newest versions of Airflow, Spark and the rest; CELLS="3.13-lowest too-old" chooses
	rm -rf dist
	$(BIN)/uv build --wheel
	$(BIN)/python -m tests.matrix $(CELLS)

reference: $(READY) ## docs/reference/python from the docstrings: after a change of one that is public
	$(BIN)/python -m tests.public

docs: $(READY) ## the documentation as a site in build/site; a warning or a dead link is an error
	$(BIN)/uv sync --locked --all-extras --group docs
	$(BIN)/sphinx-build -E -W --keep-going -q -b html -c docs . build/site

fmt: $(READY) ## format the code and mend what can be mended
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(READY): pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 is needed; none is on PATH. make PYTHON=/path/to/python names one." >&2; exit 1; }
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv sync --locked --all-extras
	@touch $@
