# Two commands do everything: `make demo` shows the product at work, `make test` tests it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PYTEST := $(PY) -m pytest

.PHONY: help
help: ## Lists the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@echo "==> Python environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) 2>/dev/null || { echo "the venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: setup
setup: $(READY) ## Creates the virtual environment and checks the Debian packages.
	@$(PY) -m localcluster apt

.PHONY: native
native: $(READY) ## Builds libvgpu and the simulated driver.
	@$(PY) libvgpu/build_native.py
	@$(PY) -m gpusim build

.PHONY: demo
demo: setup native ## Two pods on one card, on a real cluster of its own.
	@$(PY) -m egpu_testing.demo up

.PHONY: demo-down
demo-down: $(READY) ## Ends the demo's cluster and removes all of it.
	@$(PY) -m egpu_testing.demo down

.PHONY: lint
lint: $(READY)
	@echo "==> lint"; $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	@echo "==> types"; $(VENV)/bin/mypy
	@echo "==> layers"; $(VENV)/bin/lint-imports

.PHONY: check
check: lint native ## Lint, types, layers and unit tests: under a minute.
	@$(PYTEST) -q tests/unit

.PHONY: test
test: setup lint native ## Every test, the ones on a real cluster included.
	@$(PY) -m localcluster binaries
	@$(PYTEST) tests

.PHONY: test-kind
test-kind: $(READY) native ## The end-to-end tests on a kind cluster (needs Docker and kind).
	@mkdir -p build
	kind create cluster --name egpu --config tests/cluster/kind.yaml --kubeconfig build/kind.kubeconfig
	kind load image-archive "$$($(PY) -m localcluster image | tail -1)" --name egpu
	$(MAKE) test-cluster KUBECONFIG=$(CURDIR)/build/kind.kubeconfig; status=$$?; kind delete cluster --name egpu; exit $$status

.PHONY: test-cluster
test-cluster: $(READY) native ## The same on the cluster of KUBECONFIG; empties its default namespace.
	EGPU_TEST_KUBECONFIG=$(KUBECONFIG) $(PYTEST) tests/e2e

.PHONY: bench
bench: setup native bench-vgpu ## The benchmarks: the library, claims, kopf, the scheduler's retries.
	@for script in claim_latency scheduler_retry kopf_index; do echo "==> $$script"; $(PY) tests/bench/$$script.py; done

.PHONY: bench-vgpu
bench-vgpu: $(READY) native ## What the library adds to a launch and to an allocation.
	@$(PY) tests/bench/vgpu_bench.py

.PHONY: clean
clean: ## Removes what was built here; caches of the user stay.
	rm -rf build dist $(VENV) libvgpu/egpu_vgpu/*.so
