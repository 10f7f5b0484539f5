# `make check` is what CI runs before `make test`. Neither needs anything but python3, and for the tests
# of the Kafka side one of: LANEWAY_TEST_BOOTSTRAP, a Docker engine, or a JVM (17 or newer) with Maven.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUNS   := $(VENV)/.runs
PLOTS  := $(VENV)/.plots
TYPED  := laneway tests $(wildcard benchmarks examples)

.PHONY: help demo install check format test soak simulate bench bench-full clean

help:
	@echo "make demo    see the whole promise kept under kill -9; needs no Kafka, no Docker, no Java"
	@echo "make check   ruff, formatting, mypy --strict"
	@echo "make test    every test, on a real Kafka that the tests start themselves"
	@echo "make soak    the long stories of the tests: thirty moves, all permits, both group protocols"
	@echo "make simulate SEEDS=n FROM=k  histories under faults, each from a seed: docs/simulation.md"
	@echo "make bench   the budgets, measured beside their peers, in a few minutes; make bench-full: the long form"
	@echo "make format  let ruff rewrite the files"

install: $(STAMP)

# The stamp is written last, so that an interrupted installation is done again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(RUNS) $@

# The same without what only developing needs: a first look should not wait for it.
$(RUNS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

demo: $(RUNS)
	@$(BIN)/laneway demo $(DEMO_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict --explicit-package-bases $(TYPED)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Most of the time goes by waiting for brokers and workers: two files at once, each side with its own broker.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

SOAKED := $(addprefix tests/broker/test_,moving_house.py changelog_faults.py crash_points.py rerun.py memory.py benchmarks.py async.py)

soak: $(STAMP)
	LANEWAY_TEST_SOAK=1 $(BIN)/python -m pytest $(SOAKED) $(PYTEST_ARGS)

SEEDS ?= 10000
FROM  ?= 0

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM)

# The peers' own environments are made by the first run, below .bench/, where the results go too.
bench: $(PLOTS)
	$(BIN)/python -m benchmarks --json .bench/short.json --plot .bench/short.png $(BENCH_ARGS)

bench-full: $(PLOTS)
	$(BIN)/python -m benchmarks --full --json .bench/full.json --plot .bench/full.png $(BENCH_ARGS)

# Only the picture needs it.
$(PLOTS): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .bench .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
