# `make train` trains a recommender on two processes; `make test` checks everything. Both set up what
# they need on the first run and re-install nothing on the next.
#
#   make train  [DATA=path] [NPROC=2] [BACKEND=freescale] [DEVICE=cuda] [EPOCHS=n] [BALANCE=0] [OVERLAP=0]
#               [NODES=2] [ARGS="..."]              # NODES: on hosts emulated by namespaces; needs root
#   make test   [TORCH=2.14.1] [WORKERS=1] [PYTEST_ARGS="-k name"] [CTEST_ARGS="-R name"]
#   make sanitize
#   make fuzz   [SECONDS=60] [FUZZ="mailbox records"]
#   make bench  [ARGS="priority --trials 24"]   # freescale bench, and this project's aims beside it
#   make bubbles [ARGS=--sensitivity]   # what removes how many bubbles from real steps; 3, or 10 minutes
#   make test-torchrec [PYTEST_ARGS="-k name"]
#   make test-multihost [PYTEST_ARGS="--backend gloo"]   # hosts emulated by namespaces; needs root
#   make test-torch-cuda [PYTEST_ARGS="-k name"]     # CUDA tensors without a GPU; a download of 3 GB
#   make mutation-check [ARGS="--only words"]   # is each rule held by a test? half an hour for all
#   make soak   [ARGS="..."]     # a million calls, 2000 groups, messages beyond 4 GiB: minutes
#   make conformance [ARGS="--short"]
#   make gpu-check [REHEARSE=1] [ARGS="--rows driver"]   # what only a machine with GPUs can answer
#   make docs   # the site, in build/docs/html, its own links checked; docs-links checks all others
#   make lint | format | stubs | clean

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)
JOBS ?= $(shell nproc)

NPROC ?= 2
NODES ?= 1
BACKEND ?= freescale
DEVICE ?= cpu
DATA ?=
EPOCHS ?=
BALANCE ?= 1
OVERLAP ?= 1
ARGS ?=
REHEARSE ?=
PYTEST_ARGS ?=
# Tests at once: each starts a few processes, which wait for each other much of the time.
WORKERS ?= $(shell n=$$(nproc); echo $$(( n < 4 ? n : 4 )))
SECONDS ?= 60
FUZZ ?= $(patsubst tests/fuzz/%_fuzz.cc,%,$(wildcard tests/fuzz/*_fuzz.cc))
CTEST_ARGS ?=

# Another torch gets an environment and a build tree of its own, and there the package is installed
# as a wheel: an editable install would overwrite the module of the default environment.
ifeq ($(TORCH),$(DEFAULT_TORCH))
VENV := .venv
PACKAGE_INSTALL := --editable .
PACKAGE_SOURCES := setup.py pyproject.toml
else
VENV := .venv-$(TORCH)
PACKAGE_INSTALL := --force-reinstall .
PACKAGE_SOURCES := setup.py pyproject.toml CMakeLists.txt \
  $(shell find backend cmake cpp python -type f -not -name '*.so' -not -path '*/__pycache__/*' \
    -not -path '*.egg-info/*')
endif
BIN := $(CURDIR)/$(VENV)/bin
STAMPS := $(VENV)/.stamps
BUILD_DIR := build/torch-$(TORCH)
NINJA := -G Ninja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What pip does itself, but with one process: 40 s for torch and what it needs. What does not compile
# is no error to pip either.
COMPILE_PYTHON = $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

CXX_FILES = $(wildcard $(foreach folder, backend cpp/* cpp/transport/* tests/cpp tests/fakes/* \
  tests/fuzz tests/gpu, \
  $(folder)/*.h $(folder)/*.cc))
PYTHON_FILES = python examples benchmarks gpu_check tests tools cmake docs/conf.py docs/_ext setup.py
TYPED_FILES = python/freescale_pg gpu_check tools tests/conformance \
  $(wildcard examples benchmarks)

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.PHONY: help
help:
	@sed -n 's/^#   //p' Makefile

# --- Set-up: one stamp per step, newer than what the step was made from -------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "freescale_pg needs Python 3.10 or newer; set PYTHON="; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) install --no-compile torch==$(TORCH)
	$(COMPILE_PYTHON)
	touch $@

$(STAMPS)/requirements-%: requirements/%.txt $(STAMPS)/venv
	$(PIP) install --no-compile --requirement $<
	$(COMPILE_PYTHON)
	touch $@

# Each file of requirements/ is installed as it is, so --no-deps is for this one; see there.
$(STAMPS)/requirements-torchrec: requirements/torchrec.txt $(STAMPS)/torch
	$(PIP) install --no-compile --no-deps --requirement $<
	$(COMPILE_PYTHON)
	touch $@

$(STAMPS)/requirements-bench: benchmarks/requirements.txt $(STAMPS)/venv
	$(PIP) install --requirement $<
	touch $@

$(STAMPS)/package: $(PACKAGE_SOURCES) $(STAMPS)/torch $(STAMPS)/requirements-build
	@echo "building the extension and its tests: 1 to 4 minutes on two cores"
	@rm -rf build/lib.*  # setuptools would pack modules that are gone from python/ by now
	FREESCALE_BUILD_DIR=$(BUILD_DIR) FREESCALE_CMAKE_ARGS=-DFREESCALE_BUILD_TESTS=ON \
	  $(PIP) install --no-build-isolation --no-deps $(PACKAGE_INSTALL)
	touch $@

.PHONY: environment
environment: $(STAMPS)/torch $(STAMPS)/requirements-build $(STAMPS)/requirements-run \
  $(STAMPS)/requirements-dev

.PHONY: build
build: $(STAMPS)/package
	$(BIN)/cmake --build $(BUILD_DIR) --parallel $(JOBS)

# --- The commands -------------------------------------------------------------------------------

.PHONY: train
# Cores are shared out between the ranks. --standalone picks a free port, so jobs do not collide. With
# NODES, NPROC ranks on each of them, which reach no package index: the data are fetched before.
train: build $(STAMPS)/requirements-run $(if $(filter-out 1,$(NODES)),$(STAMPS)/requirements-dev)
	@for count in "NPROC=$(NPROC)" "NODES=$(NODES)"; do \
	  [[ "$$count" =~ =[1-9][0-9]*$$ ]] || { echo "$$count is not a whole number from 1 on"; exit 1; }; \
	done
	$(if $(filter-out 1,$(NODES)),$(if $(DATA),,PYTHONPATH=examples $(BIN)/python -m seqrec.movielens .cache))
	@threads=$$(( $$(nproc) / ($(NPROC) * $(NODES)) )); \
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$(( threads > 1 ? threads : 1 ))} \
	$(BIN)/python $(if $(filter-out 1,$(NODES)),$(ON_HOSTS),$(ON_THIS_HOST)) \
	  examples/train_seqrec.py --backend "$(BACKEND)" --device "$(DEVICE)" \
	  $(if $(DATA),--data "$(DATA)") $(if $(EPOCHS),--epochs $(EPOCHS)) \
	  $(if $(filter 0,$(BALANCE)),--no-balance) $(if $(filter 0,$(OVERLAP)),--no-overlap) $(ARGS)

ON_THIS_HOST = -m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=$(NPROC)
ON_HOSTS = tools/run_on_emulated_hosts.py --hosts $(NODES) --per-host $(NPROC)

.PHONY: test
test: test-cpp test-python

.PHONY: test-cpp
test-cpp: build
	$(BIN)/ctest --test-dir $(BUILD_DIR) --parallel $(JOBS) --output-on-failure --no-tests=error \
	  $(CTEST_ARGS)
	@grep -h '^\[ skip \]' $(BUILD_DIR)/Testing/Temporary/LastTest.log || echo "no C++ test skipped"

.PHONY: test-python
test-python: build $(STAMPS)/requirements-run $(STAMPS)/requirements-dev
	$(BIN)/python -m pytest tests/python -n $(WORKERS) $(PYTEST_ARGS)

# In the same environment: TorchRec's packages leave torch, numpy and pytest as they are.
.PHONY: test-torchrec
test-torchrec: build $(STAMPS)/requirements-run $(STAMPS)/requirements-dev \
  $(STAMPS)/requirements-torchrec
	@[[ $(TORCH) == $(DEFAULT_TORCH) ]] \
	  || { echo "requirements/torchrec.txt is for torch $(DEFAULT_TORCH)"; exit 1; }
	$(BIN)/python -m pytest tests/torchrec -n $(WORKERS) $(PYTEST_ARGS)

# Between hosts, which are network namespaces of this machine. One test after the other: each has
# several processes on every host.
.PHONY: test-multihost
test-multihost: build $(STAMPS)/requirements-run $(STAMPS)/requirements-dev
	$(BIN)/python -m pytest tests/multihost -p no:xdist $(PYTEST_ARGS)

# CUDA tensors on the stand-in driver. The build of torch for CUDA has an environment of its own; the
# module there is that of the default environment, since one binary serves both builds of a version.
# `===` takes the release itself, not a local version of it such as +cpu.
CUDA_VENV := .venv-cuda
CUDA_BIN := $(CURDIR)/$(CUDA_VENV)/bin
CUDA_STAMPS := $(CUDA_VENV)/.stamps
STAND_INS := $(CURDIR)/$(BUILD_DIR)/tests/fakes

$(CUDA_STAMPS)/torch: $(STAMPS)/venv
	test -x $(CUDA_BIN)/python || $(PYTHON) -m venv $(CUDA_VENV)
	mkdir -p $(CUDA_STAMPS)
	$(CUDA_BIN)/python -m pip --disable-pip-version-check --quiet install torch===$(DEFAULT_TORCH)
	touch $@

$(CUDA_STAMPS)/requirements: requirements/torch-cuda.txt $(CUDA_STAMPS)/torch
	$(CUDA_BIN)/python -m pip --disable-pip-version-check --quiet install --requirement $<
	touch $@

.PHONY: test-torch-cuda
test-torch-cuda: build $(CUDA_STAMPS)/requirements
	@[[ $(TORCH) == $(DEFAULT_TORCH) ]] \
	  || { echo "only torch $(DEFAULT_TORCH) has an environment with CUDA"; exit 1; }
	$(BIN)/cmake $(BUILD_DIR) > /dev/null  # finds the headers, which came after the build tree
	$(BIN)/cmake --build $(BUILD_DIR) --parallel $(JOBS) \
	  --target fake_cuda_driver fake_cuda_runtime fake_cuda_management
	$(BIN)/python setup.py --quiet egg_info --egg-base $(BUILD_DIR) 2> /dev/null
	PYTHONPATH=$(CURDIR)/python:$(CURDIR)/$(BUILD_DIR) $(CUDA_BIN)/python -m pytest \
	  tests/torch_cuda -n $(WORKERS) --stand-ins=$(STAND_INS) $(PYTEST_ARGS)

# The trees of `cmake --preset asan` and `tsan`, with the module: the C++ tests, then every operation
# from Python.
.PHONY: sanitize sanitize-asan sanitize-tsan
sanitize: sanitize-asan sanitize-tsan

# Leaks are not looked for: Python and torch never free much of what they hold. Of modules without
# instrumentation ThreadSanitizer cannot know how they synchronise.
sanitize-asan: SMOKE_OPTIONS := ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
sanitize-tsan: SMOKE_OPTIONS := TSAN_OPTIONS=ignore_noninstrumented_modules=1

# Python is not instrumented, so the runtime has to come first; libstdc++ beside it, or the runtime
# does not find the function that throws.
sanitize-asan sanitize-tsan: sanitize-%: $(STAMPS)/requirements-run $(STAMPS)/requirements-build \
  $(STAMPS)/torch
	$(BIN)/cmake --fresh --preset $* $(NINJA) -DFREESCALE_BUILD_TORCH=ON \
	  -DPython_EXECUTABLE=$(BIN)/python \
	  -DFREESCALE_MODULE_DIR=$(CURDIR)/build/$*/python/freescale_pg
	$(BIN)/cmake --build --preset $* --parallel $(JOBS)
	$(BIN)/ctest --preset $* --parallel $(JOBS)
	cp -r python/freescale_pg/*.py python/freescale_pg/balance build/$*/python/freescale_pg
	LD_PRELOAD="$$($(CXX) -print-file-name=lib$*.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	$(SMOKE_OPTIONS) PYTHONPATH=build/$*/python $(BIN)/python tests/python/sanitizer_smoke.py

# Each target for SECONDS, JOBS of them at once. With libFuzzer where there is a clang; else with a
# driver of our own, which is not guided by coverage. What they find is kept in build/*/tests/fuzz.
CLANG ?= $(firstword $(shell for cxx in clang++ clang++-{22..14}; do command -v $$cxx || true; done))
FUZZ_PRESET := $(if $(CLANG),fuzz,asan)
FUZZ_OPTIONS := -max_total_time=$(SECONDS) -max_len=1024 -timeout=20

.PHONY: fuzz
fuzz: $(STAMPS)/requirements-build
	$(BIN)/cmake --fresh --preset $(FUZZ_PRESET) $(NINJA) $(if $(CLANG),-DCMAKE_CXX_COMPILER=$(CLANG))
	$(BIN)/cmake --build --preset $(FUZZ_PRESET) --parallel $(JOBS) --target $(FUZZ:%=%_fuzz)
	cd build/$(FUZZ_PRESET)/tests/fuzz && printf '%s\n' $(FUZZ) | xargs -P $(JOBS) -I{} \
	  env ./{}_fuzz $(FUZZ_OPTIONS) -seed=$$(date +%s) found/{} $(CURDIR)/tests/fuzz/corpus/{}

.PHONY: conformance
# torch's own distributed tests; see tests/conformance/README.md.
conformance: build $(STAMPS)/requirements-run $(STAMPS)/requirements-dev
	PYTHONPATH=$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m conformance $(ARGS)

.PHONY: bench
bench: build $(STAMPS)/requirements-run $(STAMPS)/requirements-bench
	$(BIN)/freescale bench $(ARGS) --json $(BUILD_DIR)/bench.json
	$(BIN)/python benchmarks/verdicts.py $(BUILD_DIR)/bench.json

# Root and iproute2 for gloo on links of a given rate; else freescale's own blocking schedule is the
# baseline. See docs/emulated-cluster.md.
.PHONY: bubbles
bubbles: build $(STAMPS)/requirements-run
	$(BIN)/python benchmarks/emulated_cluster.py $(ARGS)

# One question to the GPUs after the other; docs/gpu-results.md says which. REHEARSE=1 needs no GPU.
.PHONY: gpu-check
gpu-check: build $(STAMPS)/requirements-run
	$(BIN)/python -m gpu_check --probes $(BUILD_DIR)/tests/gpu $(if $(filter 1,$(REHEARSE)),--rehearse) \
	  $(ARGS)

# Needs no torch, and builds in a tree of its own.
.PHONY: mutation-check
mutation-check: $(STAMPS)/requirements-build
	PATH=$(BIN):$$PATH $(BIN)/python tests/mutation/check_mutations.py --jobs $(JOBS) $(ARGS)

.PHONY: soak
soak: build $(STAMPS)/requirements-run
	$(BIN)/python tests/soak/soak.py $(ARGS)

# From scratch, since pages of sources are not made anew when only those have changed.
SPHINX = $(BIN)/python -m sphinx --fresh-env --quiet --jobs auto -d build/docs/doctrees

.PHONY: docs
docs: build $(STAMPS)/requirements-run $(STAMPS)/requirements-docs
	rm -rf build/docs/html
	$(SPHINX) --fail-on-warning -b html docs build/docs/html
	$(BIN)/python tools/check_site.py build/docs/html

# Asks other servers, so it is no part of .ci/run.
.PHONY: docs-links
docs-links: build $(STAMPS)/requirements-run $(STAMPS)/requirements-docs
	$(SPHINX) -b linkcheck docs build/docs/links

# --- Checks, each of them a step of .ci/run -----------------------------------------------------

.PHONY: lint
lint: format-check ruff types layers stubs-check

.PHONY: format-check
format-check: $(STAMPS)/requirements-dev
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/ruff format --check $(wildcard $(PYTHON_FILES))

.PHONY: format
format: $(STAMPS)/requirements-dev
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format $(wildcard $(PYTHON_FILES))
	$(BIN)/ruff check --fix $(wildcard $(PYTHON_FILES))

.PHONY: ruff
ruff: $(STAMPS)/requirements-dev
	$(BIN)/ruff check $(wildcard $(PYTHON_FILES))

.PHONY: types
types: $(STAMPS)/requirements-dev $(STAMPS)/requirements-run $(STAMPS)/torch
	$(BIN)/mypy $(TYPED_FILES)

.PHONY: layers
layers: $(STAMPS)/venv
	$(BIN)/python tools/check_layers.py

.PHONY: stubs-check
stubs-check: build $(STAMPS)/requirements-dev
	$(BIN)/python tools/generate_stubs.py --check

.PHONY: stubs
stubs: build $(STAMPS)/requirements-dev
	$(BIN)/python tools/generate_stubs.py

# Keeps the environments, which take minutes to download.
.PHONY: clean
clean:
	rm -rf build python/*.egg-info python/freescale_pg/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	rm -f .venv*/.stamps/package
