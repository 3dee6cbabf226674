# The one entrance. `make` alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
DATA ?= data

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: none has to compile what another compiled

.DEFAULT_GOAL := help
BENCH ?= short
SEEDS ?= 100
RUNS ?= 1
SECONDS ?= 120
BROKERS ?= 3
LOCK := $(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-trusted-host \
	--no-emit-find-links --allow-unsafe --strip-extras --no-annotate --no-header
CYCLES ?= 10
JOBS ?= 5
BROKERS_LOSING_POWER ?= 1
CASES ?= 50
CARS ?= 1000
EXAMPLES ?= 3000
.PHONY: help bounds faults faults-pauses faults-transactions faults-schedule faults-storage faults-corruption setup-faults setup-test setup-quick setup-spark-classes setup-java-classes setup-collected prerequisites setup setup-dev setup-pipelines setup-compat setup-zookeeper run cluster fleet pipelines-cluster test check compat fuzz simulate simulate-core mutants machines \
	bench format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

prerequisites:
	@command -v $(PYTHON) >/dev/null || { echo "runnel: Python 3.11 or newer is needed and '$(PYTHON)' was not found: install it, or name yours with make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "runnel: Python 3.11 or newer is needed, $$($(PYTHON) --version) was found: name a newer one with make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "runnel: $(PYTHON) lacks its venv module: on Debian, apt-get install python3-venv." >&2; exit 1; }

.venv/run.done: requirements/run.txt pyproject.toml | prerequisites
	@echo "runnel: setting up .venv with the pinned dependencies (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src  # so that the first start is as quick as the second
	@touch $@

.venv/pipelines.done: .venv/run.done requirements/pipelines.txt
	@echo "runnel: adding Spark and what its pipelines need to .venv (once; about 440 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-compile -r requirements/pipelines.txt
	@touch $@

.venv/dev.done: .venv/pipelines.done requirements/dev.txt
	@echo "runnel: adding the tools for checks and tests to .venv (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-compile -r requirements/dev.txt
	@touch $@

setup: .venv/run.done ## install Runnel into .venv; the command is .venv/bin/runnel

setup-dev: .venv/dev.done ## the same, with what checks and tests need

setup-pipelines: .venv/pipelines.done ## the same as setup, with Spark for runnel pipeline

run: setup ## start a broker on loopback (data in ./data, or make run DATA=DIR)
	@exec $(BIN)/runnel serve --data $(DATA)

cluster: setup setup-zookeeper ## start a ZooKeeper and three brokers on loopback (data in ./data-dev; BROKERS=N)
	@exec $(BIN)/runnel dev --brokers $(BROKERS)

fleet: setup-pipelines ## cars on a live map: a broker, cars, a Spark job and a page (data in ./data-fleet; CARS=N)
	@exec $(BIN)/runnel pipeline fleet show --cars $(CARS)

setup-zookeeper: setup ## find a ZooKeeper for clusters and tests, or fetch one into build/zookeeper (4.5 MB)
	@$(BIN)/python -m runnel.dev.zookeeper || test -z "$$CI"

setup-compat: setup-dev ## fetch the foreign clients that the tests use, into build/compat
	@$(BIN)/python -m tests.compat.setup_clients

test: setup-dev ## all the tests, so many at once: they mostly wait (JOBS=N)
	@$(MAKE) --no-print-directory --jobs 4 setup-test
	$(BIN)/pytest -n $(JOBS)

compat: setup-compat ## the tests with foreign Kafka clients alone
	$(BIN)/pytest tests/compat

faults: setup-dev setup-zookeeper setup-faults ## real brokers and clients under real faults (RUNS=N SECONDS=N SEED=S)
	@$(BIN)/python -m tests.faults --runs $(RUNS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults-transactions: setup-compat setup-zookeeper setup-faults ## exactly once, with six clients: killed at every step, then under faults (RUNS=N SECONDS=N SEED=S)
	@RUNNEL_EVERY_STEP=1 $(BIN)/pytest tests/test_exactly_once.py
	@$(BIN)/python -m tests.faults --transactions --runs $(RUNS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults-pauses: setup-dev setup-zookeeper ## brokers that hang as long as producers wait, under many of them (SECONDS=N)
	@$(BIN)/python -m tests.faults.pauses --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults-schedule: setup-dev setup-zookeeper ## delayed messages while the leader of their schedule is killed again and again (CYCLES=N)
	RUNNEL_SCHEDULE_KILLS=$(CYCLES) RUNNEL_SCHEDULE_MESSAGES=20000 $(BIN)/pytest tests/test_schedule_failover.py

faults-storage: setup-dev setup-faults ## power losses under load, as root (CYCLES=N BROKERS_LOSING_POWER=N SEED=S)
	@$(BIN)/python -m tests.faults.storage_power --cycles $(CYCLES) --brokers $(BROKERS_LOSING_POWER) $(if $(SEED),--seed $(SEED))

faults-corruption: setup-dev ## bit flips, short and missing files, on copies of a log (CASES=N SEED=S)
	@$(BIN)/python -m tests.faults.storage_corruption --cases $(CASES) $(if $(SEED),--seed $(SEED))

pipelines-cluster: setup-compat setup-zookeeper ## streams into topics killed at every step; archive and fleet on a Spark cluster and three brokers, some of which are killed
	RUNNEL_EVERY_STEP=1 $(BIN)/pytest tests/pipelines/spark/test_crash.py
	RUNNEL_CLUSTER_MINUTES=60 RUNNEL_CLUSTER_CARS=200 $(BIN)/pytest tests/pipelines/spark/test_cluster.py

setup-faults: setup-dev
	@$(BIN)/python -m tests.faults.sandbox

setup-test: setup-compat setup-zookeeper setup-faults setup-quick

setup-quick: setup-spark-classes setup-java-classes setup-collected  # what makes tests start quickly

setup-spark-classes: setup-dev
	@mkdir -p build
	@$(BIN)/python -m tests.pipelines.spark_classes 2> build/spark_classes.log || { cat build/spark_classes.log; exit 1; }

setup-java-classes: setup-compat
	@$(BIN)/python -m tests.compat.keep_classes

setup-collected: setup-dev  # compiles the tests, once for all workers
	@mkdir -p build
	@$(BIN)/pytest --collect-only -qq > build/collected.log || { tail -n 50 build/collected.log; exit 1; }

fuzz: setup-dev ## hostile bytes for every parser, and against a real broker, for longer than make test does
	RUNNEL_FUZZ_EXECS=5000000 RUNNEL_FUZZ_FRAMES=200000 $(BIN)/pytest tests/record/test_fuzz.py tests/wire tests/fuzz

bounds: setup-dev ## floods against a broker: what was sent, its memory, whether others were served meanwhile
	@$(BIN)/python -m tests.bounds

machines: setup-dev ## every state machine through more random lives than make test does (EXAMPLES=N)
	RUNNEL_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n $(JOBS) $$(grep -rl "helpers.examples" --include='*.py' tests)

simulate: setup ## the whole broker under faults, in virtual time, on all cores (SEEDS=N)
	@$(BIN)/runnel simulate --seeds $(SEEDS) --jobs $$(nproc)

simulate-core: setup ## the rules of replication alone, in a model, on all cores (SEEDS=N)
	@$(BIN)/runnel simulate --core --seeds $(SEEDS) --jobs $$(nproc)

mutants: setup-dev ## rules switched off, one by one, on all cores: each must be noticed
	@$(BIN)/python -m tests.simulation

bench: setup-dev ## Runnel beside its peers and the disk's limit (BENCH=full: all of it, an hour)
	$(BIN)/python -m bench $(if $(filter full,$(BENCH)),--full)

check: setup-dev ## lint, types, and which way the imports point
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup-dev ## choose the newest dependencies and pin them anew
	$(LOCK) -o requirements/run.txt pyproject.toml requirements/build.in
	$(LOCK) --extra pipelines -c requirements/run.txt -o requirements/pipelines.txt pyproject.toml
	$(LOCK) -o requirements/dev.txt requirements/dev.in
	$(LOCK) -o requirements/compat.txt requirements/compat.in

clean: ## remove what make made (not your data)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
