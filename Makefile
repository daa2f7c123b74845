# Two commands: `make demo` and `make test`. Each sets everything up from nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test test-unit test-engine test-long test-browser mutants lint bench soak gpu-check clean

demo: $(VENV)/.engine
	$(BIN)/sglang-dsl models pull smollm2
	$(BIN)/python -m examples.demo

test: lint test-unit test-engine

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/deptry .

# Without network, model or torch.
test-unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not engine and not model and not long and not browser"

# With torch, and with SmolLM2 on the CPU.
test-engine: $(VENV)/.dev
	$(BIN)/sglang-dsl models pull smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "(engine or model) and not long and not browser"

test-long: $(VENV)/.dev
	$(BIN)/sglang-dsl models pull smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long --timeout=1800

# The HTML picture in headless Chromium, which is installed from Debian's packages where it is missing.
test-browser: $(VENV)/.dev
	@command -v chromium >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -qy --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser tests/browser

# Small faults that the unit tests have to notice. MUTANTS="cache --seed 7 --sample 40 --minutes 5", say, draws others.
mutants: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py --check $(MUTANTS)

bench: $(VENV)/.engine
	$(BIN)/sglang-dsl models pull smollm2
	$(BIN)/python -m benchmarks.workloads

soak: $(VENV)/.dev
	$(BIN)/python benchmarks/soak.py --minutes 10

gpu-check: $(VENV)/.engine
	$(BIN)/python benchmarks/gpu_check.py

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --disable-pip-version-check --quiet --editable '.[engine]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --disable-pip-version-check --quiet --editable '.[dev]'
	@touch $@
