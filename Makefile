# `make run` and `make test` do all set-up by themselves; everything they make lies in .venv/ and $(RUN_DIR).

PYTHON ?= python3
RUN_DIR ?= .run
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find node_manager roles packaging/examples -type f -not -name '*.pyc' -not -name '*.so' \
	-not -name xce-fuse) pyproject.toml README.md
NATIVE := setup.py $(wildcard native/*)
RUN_PATH := $(abspath $(RUN_DIR))

.DEFAULT_GOAL := help
.PHONY: help run test lint format types coverage slow repeat races simulate mutations faults system emulated libxce docs wheel deb rpm bench clean

help:
	@echo "make run       a whole single-host cluster on the reference components, in the foreground"
	@echo "make test      all tests"
	@echo "make lint      ruff check and ruff format --check      make types   mypy --strict"
	@echo "make repeat    all tests, 20 times or until one fails (TIMES=n)"
	@echo "make races     the tests of real processes, with a slow disk, log, loop and components in turn"
	@echo "make slow      the longer suites                       make coverage  branch coverage of core/"
	@echo "make simulate  2,000 seeds of a cluster in virtual time  make mutations  the faults planted to try the simulator"
	@echo "make faults    real processes hurt on purpose          make system   machines that boot a real systemd"
	@echo "make emulated  a machine with full cgroup v2 and Linux 6.1, in qemu"
	@echo "make libxce    the client library in C99, its tests    make deb      dist/*.deb"
	@echo "make docs      generated pages                         make rpm      dist/*.rpm"
	@echo "make wheel     dist/*.whl                              make bench    this and other supervisors side by side"

$(VENV)/.tools: pyproject.toml packaging/dev-setup.sh
	packaging/dev-setup.sh $(PYTHON) $(VENV)
	@touch $@

# In place, for tests that import from the source tree; without a compiler nothing comes of it, and nothing fails.
$(VENV)/.native: $(VENV)/.tools $(NATIVE)
	$(BIN)/python setup.py -q build_ext --inplace
	@rm -rf build
	@touch $@

$(VENV)/.package: $(VENV)/.native $(SOURCES)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --force-reinstall .
	@rm -rf build *.egg-info
	@touch $@

run: $(VENV)/.package
	@mkdir -p $(RUN_PATH)
	@PATH="$(abspath $(BIN)):$$PATH" exec $(BIN)/xce-node-manager run \
		--config $(abspath packaging/examples/single-host.yaml) \
		--roles-dir $(abspath roles/reference) \
		--runtime-dir $(RUN_PATH)/run --state-dir $(RUN_PATH)/state --log-dir $(RUN_PATH)/log

test: $(VENV)/.package
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow and not faults and not system"

repeat: $(VENV)/.package
	for run in $$(seq $(or $(TIMES),20)); do $(MAKE) --no-print-directory test || exit 1; echo "$$run run(s) passed"; done

races: $(VENV)/.package
	for part in disk log loop components; do \
		XCE_TEST_SLOWED=$$part $(BIN)/python -m pytest -q -n 4 --dist worksteal -m "not slow and not faults" tests/integration || exit 1; \
		XCE_TEST_SLOWED=$$part $(BIN)/python -m pytest -q -p no:xdist -m faults tests/faults || exit 1; \
	done

slow: $(VENV)/.package
	$(BIN)/python -m pytest -m "slow and not faults and not system"

simulate: $(VENV)/.tools
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),0..1999) --jobs 2

mutations: $(VENV)/.tools
	$(BIN)/python -m tests.simulation.mutations --jobs 2

faults: $(VENV)/.package
	$(BIN)/python -m pytest -q -p no:xdist --durations=5 -m faults tests/faults

system: $(VENV)/.package
	packaging/system-setup.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile -v --durations=0 --durations-min=0 -m system \
		--ignore tests/system/test_full_v2.py tests/system

emulated: $(VENV)/.package
	packaging/system-setup.sh
	$(BIN)/python -m pytest -p no:xdist -v -m system tests/system/test_full_v2.py

libxce: $(VENV)/.tools
	$(MAKE) --no-print-directory -C libxce all check

deb: $(VENV)/.tools
	packaging/system-setup.sh
	packaging/build-deb.sh dist

rpm: $(VENV)/.tools
	packaging/system-setup.sh
	packaging/build-rpm.sh dist

bench: $(VENV)/.package
	packaging/bench-setup.sh .bench/tools
	$(BIN)/python -m benchmarks.peers

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.package
	$(BIN)/mypy

coverage: $(VENV)/.package
	$(BIN)/coverage run --branch --source node_manager/core -m pytest -q -m "not slow" tests/unit/core tests/property
	$(BIN)/coverage report --show-missing --fail-under 100

docs: $(VENV)/.package
	$(BIN)/python docs/generate_states.py

wheel: $(VENV)/.tools
	$(BIN)/python -m build --wheel
	@rm -rf build *.egg-info

clean:
	rm -rf $(VENV) $(RUN_DIR) build dist *.egg-info
