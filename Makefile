# Every target says what it does: `make help`.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev,spark,arrow,codecs,cli,demo,kafka
SOURCES := $(shell find eoslog spark -name '*.py' -o -name '*.py[xi]' -o -name '*.px[di]' -o -name '*.[ch]' 2>/dev/null | grep -v '^eoslog/_core\.c$$')
FAST ?= not slow and not spark and not process
PYTEST_ARGS ?=
SECONDS_ = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
REPORT ?= docs/reliability-report.md

# Runs a recipe line and prints how long it took.
timed = @start=$$SECONDS; $(2); code=$$?; printf '%-10s %4d s\n' '$(1)' $$((SECONDS - start)); exit $$code

.DEFAULT_GOAL := help
.PHONY: help setup build wheel inplace test test-fast test-kafka test-spark torture-spark run bench
.PHONY: bench-instructions
.PHONY: bench-spark torture-spark-kafka
.PHONY: simulate lint format types imports stubs mutants asan fuzz rows torture clean distclean

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make the virtual environment; install Python, a compiler and Java if root may

$(VENV)/.ready: pyproject.toml .ci/system
	$(call timed,set-up,.ci/setup $(VENV) '$(EXTRAS)')

build: $(VENV)/.built  ## Build the wheel and install it (not editable: tests see what users get)

$(VENV)/.built: $(VENV)/.ready $(SOURCES) setup.py pyproject.toml
	$(call timed,build,.ci/build $(VENV))

wheel: build  ## Build the wheel; it lies in dist/
	@ls -l dist/*.whl

inplace: setup  ## Compile the core beside its source, for work on it
	$(BIN)/python setup.py -q build_ext --inplace

test: build  ## Run every test on the installed wheel, JOBS=2 files at a time
	$(call timed,tests,.ci/test $(BIN) -n $(or $(JOBS),2) $(PYTEST_ARGS))

test-fast: build  ## Run what needs no other process, no JVM, no disk and no second: a minute
	$(call timed,tests,TMPDIR=$(or $(TMPDIR),$(if $(wildcard /dev/shm/.),/dev/shm,/tmp)) .ci/test $(BIN) -n $(or $(JOBS),2) -m '$(FAST)' -q $(PYTEST_ARGS))

test-kafka: build  ## Run the tests against a real Kafka broker, fetched by Maven: ten minutes
	@$(BIN)/python tests/kafka/jars.py
	$(call timed,kafka,EOSLOG_KAFKA=1 .ci/test $(BIN) tests/kafka $(PYTEST_ARGS))

differential: build  ## Put COUNT=10000 random sequences (SEED=1, KIND=groups) to a real Kafka and to eoslog: 15 minutes
	@$(BIN)/python tests/kafka/jars.py
	@rm -rf .make/differential && mkdir -p .make/differential && cp -a tests .make/differential/
	$(call timed,compare,cd .make/differential && $(abspath $(BIN))/python -m tests.kafka.differential $(or $(COUNT),10000) $(or $(SEED),1) $(KIND))

run: build  ## Take 336,776 flights through kills, zombies and Spark, exactly once
	$(call timed,demo,$(BIN)/eoslog demo flights $(DEMO_ARGS))
	@mkdir -p .make/run
	$(call timed,pipelines,cd .make/run && $(abspath $(BIN))/python $(abspath spark/pipelines/flights.py))

test-spark: build  ## Run the tests of the Spark source and sink, eight kills among them
	$(call timed,tests,.ci/test $(BIN) tests/spark $(PYTEST_ARGS))

torture-spark: build  ## Kill 40 drivers and 160 workers and executors inside Spark jobs (TORTURE_ARGS)
	@rm -rf .make/torture && mkdir -p .make/torture && cp -a tests .make/torture/
	$(call timed,torture,cd .make/torture && $(abspath $(BIN))/python -m tests.spark.torture $(TORTURE_ARGS))

torture-spark-kafka: build  ## The same kills under Spark's Kafka sink on a real broker: what they leave (TORTURE_ARGS)
	@rm -rf .make/torture && mkdir -p .make/torture && cp -a tests .make/torture/
	$(call timed,torture,cd .make/torture && $(abspath $(BIN))/python -m tests.spark.torture_kafka $(TORTURE_ARGS))

$(VENV)/.peers: $(VENV)/.ready .ci/peers
	$(call timed,peers,.ci/peers $(VENV))

bench: build $(VENV)/.peers  ## Measure against the goals: ten minutes; SCALE=20 for the long rows, BENCH_ARGS='-k scan'
	@rm -f .make/bench.json
	$(call timed,bench,EOSLOG_BENCH_SCALE=$(or $(SCALE),1) .ci/test $(BIN) bench --benchmark-only \
		--benchmark-json=$(abspath .make/bench.json) $(BENCH_ARGS))

bench-spark: build  ## Spark beside Parquet and its Kafka connector: ten minutes (ROWS=1000000)
	@rm -rf .make/bench-spark && mkdir -p .make/bench-spark && cp -a tests bench .make/bench-spark/
	$(call timed,bench,cd .make/bench-spark && $(abspath $(BIN))/python -m bench.spark --rows $(or $(ROWS),1000000) $(BENCH_ARGS))

bench-instructions: build  ## Count the instructions of the hottest kernels (ARGS=--write)
	@mkdir -p .make/counts && cd .make && rm -rf counts/bench && cp -a ../bench counts/ && cd counts && \
		EOSLOG_SOURCE=$(CURDIR) $(abspath $(BIN))/python -m bench.instructions $(ARGS)

lint: setup  ## Check style, by ruff
	$(BIN)/ruff check .

format: setup  ## Format the code, by ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

imports: setup  ## Check that imports only go down the floors, by import-linter
	$(BIN)/lint-imports

types: setup  ## Check the types, by mypy
	$(BIN)/mypy

stubs: build  ## Check that _core.pyi says what the compiled core has
	cd .make && $(abspath $(BIN))/python -m mypy.stubtest --mypy-config-file ../pyproject.toml \
		--allowlist ../.ci/stubtest-allow --ignore-unused-allowlist --ignore-disjoint-bases eoslog._core

mutants: build  ## Apply each recorded mutation and show its test fail (ROWS='A01 P07', JOBS=2)
	$(call timed,mutants,$(BIN)/python tests/mutants.py --jobs $(or $(JOBS),2) $(ROWS))

rows: build  ## Run the tests of the mission's rows with the figures of long runs (SCALE=100)
	$(call timed,rows,EOSLOG_ROW_SCALE=$(or $(SCALE),10) .ci/test $(BIN) tests/rows tests/protocol $(PYTEST_ARGS))

asan: build  ## Build the core with ASan and UBSan and run its tests on it
	$(call timed,asan,.ci/asan $(VENV) -m pytest -p no:cacheprovider -q $(or $(ASAN_ARGS),tests/core tests/fuzz tests/storage tests/properties -m 'not process'))

fuzz: build  ## Fuzz every parser for SECONDS=60 in all; SANITIZE=1 with gcc's sanitizers; FUZZ_ARGS='--target record'
	$(call timed,fuzz,$(if $(SANITIZE),.ci/asan $(VENV) -m tests.fuzz.run --finds $(abspath .make/fuzz) --seconds,.ci/fuzz $(VENV)) $(SECONDS_) $(FUZZ_ARGS))

simulate: build  ## Simulate crashes for SECONDS (60) from SEED (1) on
	@rm -rf .make/simulation && mkdir -p .make/simulation && cp -a tests .make/simulation/
	cd .make/simulation && $(abspath $(BIN))/python -m tests.simulation --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1)

torture: build  ## Every fault for MINUTES (10), counts into docs/reliability-report.md; SEED= repeats
	$(call timed,torture,.ci/torture $(BIN) --report $(abspath $(REPORT)) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(TORTURE_ARGS))

clean:  ## Remove what was built; the virtual environment stays
	rm -rf build dist .make *.egg-info eoslog/_core.c eoslog/*.so demo-data delays.png spark-warehouse
	rm -rf metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## Remove the virtual environments too
	rm -rf .venv .venv-ci
