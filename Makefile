# Each target describes itself in `make help`. Checks that take long, or that need more than the code, are
# named `quality-...`.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := dev,docs,spark,arrow,codecs,cli,demo,kafka,postgres,sqlalchemy
SOURCES := $(shell find eoslog spark -name '*.py' -o -name '*.py[xi]' -o -name '*.px[di]' -o -name '*.[ch]' 2>/dev/null | grep -v '^eoslog/_core\.c$$')
FAST ?= not slow and not spark and not process
PYTEST_ARGS ?=
SECONDS_ = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
REPORT ?= docs/contributing/torture-report.md
FIGURES ?= tests/torture/torture-report.json

# Runs a recipe line and prints how long it took.
timed = @start=$$SECONDS; $(2); code=$$?; printf '%-10s %4d s\n' '$(1)' $$((SECONDS - start)); exit $$code

.DEFAULT_GOAL := help
.PHONY: help setup build wheel test test-fast run bench lint format docs torture clean
.PHONY: quality-language quality-links quality-imports quality-types quality-stubs quality-kafka quality-across quality-spark quality-differential
.PHONY: quality-rows quality-mutants quality-asan quality-fuzz quality-simulation quality-torture-spark
.PHONY: quality-torture-spark-damaged quality-torture-spark-kafka quality-bench-spark quality-instructions

help:  ## List the targets
	@printf 'Usage: make TARGET [NAME=VALUE ...]\n\n'
	@awk -F':.*## ' '/^[a-z-]+:.*## / && !/^quality-/ {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nChecks that take long, or that need more than the code:\n\n'
	@awk -F':.*## ' '/^quality-/ {printf "  %-30s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Create the virtual environment; as root, also install Python, a C compiler and Java if missing

$(VENV)/.ready: pyproject.toml .ci/system
	$(call timed,set-up,.ci/setup $(VENV) '$(EXTRAS)')

build: $(VENV)/.built  ## Build the wheel for this machine and install it into the virtual environment

$(VENV)/.built: $(VENV)/.ready $(SOURCES) setup.py pyproject.toml
	$(call timed,build,.ci/build $(VENV))

wheel: setup  ## Build a wheel for any Linux and the source distribution into dist/, and test the wheel
	$(call timed,wheel,.ci/wheel $(VENV))

test: build  ## Run all tests on the installed wheel (JOBS=2 files at a time, PYTEST_ARGS='-k name')
	$(call timed,tests,.ci/test $(BIN) -n $(or $(JOBS),2) $(PYTEST_ARGS))

test-fast: build  ## Run the short tests that start no process and no JVM: about a minute
	$(call timed,tests,TMPDIR=$(or $(TMPDIR),$(if $(wildcard /dev/shm/.),/dev/shm,/tmp)) .ci/test $(BIN) -n $(or $(JOBS),2) -m '$(FAST)' -q $(PYTEST_ARGS))

run: build  ## Run the demo: 336,776 flights through kills, zombies and Spark, exactly once
	$(call timed,demo,$(BIN)/eoslog demo flights $(DEMO_ARGS))
	@mkdir -p .make/run
	$(call timed,pipelines,cd .make/run && $(abspath $(BIN))/python $(abspath spark/pipelines/flights.py))

$(VENV)/.peers: $(VENV)/.ready .ci/peers
	$(call timed,peers,.ci/peers $(VENV))

bench: build $(VENV)/.peers  ## Measure against the goals: about ten minutes (SCALE=20 for the long rows, BENCH_ARGS='-k scan')
	@rm -f .make/bench.json
	$(call timed,bench,EOSLOG_BENCH_SCALE=$(or $(SCALE),1) .ci/test $(BIN) bench --benchmark-only \
		--benchmark-json=$(abspath .make/bench.json) $(BENCH_ARGS))

lint: setup  ## Check the style, the spelling, and the files of .github
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/codespell
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

format: setup  ## Format the code and apply the fixes that are safe
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: build  ## Build the documentation's site into build/docs; every warning is an error
	$(call timed,docs,$(BIN)/sphinx-build -b html -n -W --keep-going -q docs build/docs)

torture: build  ## Inject every fault for MINUTES=10 and write docs/contributing/torture-report.md (SEED=1 repeats a run)
	$(call timed,torture,.ci/torture $(BIN) --report $(abspath $(REPORT)) --figures $(abspath $(FIGURES)) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(TORTURE_ARGS))

clean:  ## Remove build results; the virtual environments too with ALL=1
	rm -rf build dist .make *.egg-info eoslog/_core.c eoslog/*.so demo-data delays.png spark-warehouse
	rm -rf metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
	$(if $(ALL),rm -rf .venv .venv-ci .venv-wheel)

quality-language: build  ## Check the words and the style of all text against docs/contributing/style.md
	.ci/test $(BIN) -q -p no:cacheprovider tests/test_language.py

quality-links: docs  ## Check the links of the documentation, those to other sites too
	$(BIN)/sphinx-build -b linkcheck -q docs build/docs-links

quality-imports: setup  ## Check that imports only go down the layers
	PYTHONPATH=spark $(BIN)/lint-imports

quality-types: setup  ## Check the types
	$(BIN)/mypy

quality-stubs: build  ## Check _core.pyi against the compiled core
	cd .make && $(abspath $(BIN))/python -m mypy.stubtest --mypy-config-file ../pyproject.toml \
		--allowlist ../.ci/stubtest-allow --ignore-unused-allowlist --ignore-disjoint-bases eoslog._core

quality-kafka: build  ## Run the tests against a real Kafka broker, fetched by Maven: seven minutes
	@$(BIN)/python tests/kafka/jars.py
	$(call timed,kafka,EOSLOG_KAFKA=1 .ci/test $(BIN) -n 2 --dist loadfile tests/kafka $(PYTEST_ARGS))

quality-across: build  ## Count what kills leave between a log and a database, with Kafka and eoslog (KILLS=20)
	@$(BIN)/python tests/kafka/jars.py
	@rm -rf .make/across && mkdir -p .make/across && cp -a tests .make/across/
	$(call timed,across,cd .make/across && $(abspath $(BIN))/python -m tests.kafka.across --kills $(or $(KILLS),20) --docs $(abspath docs))

quality-differential: build  ## Compare eoslog with a real Kafka on COUNT=10000 random sequences: 15 minutes (SEED=1, KIND=groups)
	@$(BIN)/python tests/kafka/jars.py
	@rm -rf .make/differential && mkdir -p .make/differential && cp -a tests .make/differential/
	$(call timed,compare,cd .make/differential && $(abspath $(BIN))/python -m tests.kafka.differential $(or $(COUNT),10000) $(or $(SEED),1) $(KIND))

quality-spark: build  ## Run the tests of the Spark source and sink, with eight kills
	$(call timed,tests,.ci/test $(BIN) tests/spark $(PYTEST_ARGS))

quality-rows: build  ## Run the tests of the mission's rows with the figures of long runs (SCALE=100)
	$(call timed,rows,EOSLOG_ROW_SCALE=$(or $(SCALE),10) .ci/test $(BIN) tests/rows tests/protocol tests/app/test_kills.py $(PYTEST_ARGS))

quality-mutants: build  ## Apply each recorded mutation and show that its test fails (ROWS='A01 P07', JOBS=2)
	$(call timed,mutants,$(BIN)/python tests/mutation/mutants.py --jobs $(or $(JOBS),2) $(ROWS))

quality-asan: build  ## Run the core's tests on a build with AddressSanitizer and UBSan (ASAN_ARGS)
	$(call timed,asan,.ci/asan $(VENV) -m pytest -p no:cacheprovider -q -n 2 --dist worksteal $(or $(ASAN_ARGS),tests/core tests/fuzz tests/storage tests/properties -m 'not process'))

quality-fuzz: build  ## Fuzz every parser for SECONDS=60 in all (SANITIZE=1: gcc's sanitizers; FUZZ_ARGS='--target record')
	$(call timed,fuzz,$(if $(SANITIZE),.ci/asan $(VENV) -m tests.fuzz.run --finds $(abspath .make/fuzz) --seconds,.ci/fuzz $(VENV)) $(SECONDS_) $(FUZZ_ARGS))

quality-simulation: build  ## Simulate crashes for SECONDS=60, beginning with SEED=1
	@rm -rf .make/simulation && mkdir -p .make/simulation && cp -a tests .make/simulation/
	cd .make/simulation && $(abspath $(BIN))/python -m tests.simulation --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1)

quality-torture-spark: build  ## Kill 40 drivers and 160 workers and executors in Spark jobs (TORTURE_ARGS)
	@rm -rf .make/torture && mkdir -p .make/torture && cp -a tests .make/torture/
	$(call timed,torture,cd .make/torture && $(abspath $(BIN))/python -m tests.spark.torture $(TORTURE_ARGS))

quality-torture-spark-damaged: build  ## Damage files, then read them through Spark: 500 pairs (TORTURE_ARGS)
	@rm -rf .make/torture && mkdir -p .make/torture && cp -a tests .make/torture/
	$(call timed,torture,cd .make/torture && $(abspath $(BIN))/python -m tests.spark.damaged $(TORTURE_ARGS))

quality-torture-spark-kafka: build  ## Apply the same kills to Spark's Kafka sink on a real broker (TORTURE_ARGS)
	@rm -rf .make/torture && mkdir -p .make/torture && cp -a tests .make/torture/
	$(call timed,torture,cd .make/torture && $(abspath $(BIN))/python -m tests.spark.torture.kafka_sink $(TORTURE_ARGS))

quality-bench-spark: build  ## Compare Spark on eoslog with Parquet and Kafka: ten minutes (ROWS=1000000)
	@rm -rf .make/bench-spark && mkdir -p .make/bench-spark && cp -a tests bench .make/bench-spark/
	$(call timed,bench,cd .make/bench-spark && $(abspath $(BIN))/python -m bench.spark --rows $(or $(ROWS),1000000) $(BENCH_ARGS))

quality-instructions: build  ## Count the instructions of the hottest kernels (ARGS=--write keeps the counts)
	@mkdir -p .make/counts && cd .make && rm -rf counts/bench && cp -a ../bench counts/ && cd counts && \
		EOSLOG_SOURCE=$(CURDIR) $(abspath $(BIN))/python -m bench.instructions $(ARGS)
