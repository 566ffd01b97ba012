# What a newcomer types. Needs Python 3.10 or later with venv, and a C++20 compiler (GCC 12, Clang 15); everything else
# comes into .venv by pip, in the versions of constraints.txt.
#
# Steps that make something leave a stamp in .venv or build/, so that they run again only when what they read changed.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := -m pip --disable-pip-version-check install -q -c constraints.txt
PIP := $(BIN)/python $(INSTALL)
JOBS ?= $(shell nproc)
# The tests start hundreds of ranks, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
CTEST := $(abspath $(BIN))/ctest --output-on-failure --no-tests=error -j$(JOBS) --timeout
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DSHOAL_PYTHON=OFF -DSHOAL_TESTS=ON

NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt') CMakeLists.txt
TIDY := $(filter-out native/bindings/%,$(filter %.cpp,$(NATIVE)))
PYTHON_FILES := $(wildcard src tests examples benchmarks native/tests/faults packaging)

# Wheels have an environment of their own, with Zig's compiler in it (packaging/toolchain.py).
MACHINE := $(shell uname -m)
# WHEEL_PYTHONS="3.11 3.13": for these alone, of those that are here.
WHEEL_BIN := build/wheels/tools/bin
WHEEL_PYTHON := CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) ZIG_GLOBAL_CACHE_DIR=$(abspath build/wheels/zig) $(WHEEL_BIN)/python

# Seconds of simulated-network schedules with fresh seeds.
SIM_SECONDS ?= 60

# Seconds of each fuzzer. What it finds on the way is kept in build/fuzz/corpus; `make fuzz-corpus` takes of it what the
# repository's own lacks.
FUZZ_SECONDS ?= 20
FUZZERS := $(notdir $(basename $(wildcard native/fuzz/*_fuzz.cpp)))
PYTHON_FUZZERS := $(notdir $(basename $(wildcard tests/fuzz/*_fuzz.py)))
FUZZ_OPTIONS := -verbosity=0 -timeout=10 -rss_limit_mb=1024 -max_len=4096 -len_control=10 -print_final_stats=1

.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint lint-python lint-native format native-test slow-test doors-test tools-test sim sim-faults sanitize compat compat-tensorflow
.PHONY: wheels wheel-test aarch64-test fuzz fuzz-corpus clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: .venv/.installed  ## trains a small network with 4 ranks on 4 nodes and 2 servers, and compares it with one process
	$(BIN)/shoal run -n 4 --nodes 4 --servers 2 examples/digits.py

test: .venv/.installed native-test  ## everything that is quick: native tests, then Python's
	$(BIN)/python -m pytest -m "not slow" --durations=25

test-all: test doors-test sim sanitize fuzz wheel-test slow-test aarch64-test  ## everything

# PART=2/5: the second of five parts, of as many tests each.
slow-test: .venv/.installed  ## the Python tests that take more than a few seconds
	$(BIN)/python -m pytest -m slow --durations=10 $(if $(PART),--splitting-algorithm least_duration \
	  --group $(firstword $(subst /, ,$(PART))) --splits $(lastword $(subst /, ,$(PART))))

doors-test: build/doors/.installed  ## the frameworks that have an environment of their own: TensorFlow, Keras
	build/doors/venv/bin/python -m pytest tests/doors

tools-test: build/tools/.installed  ## Accelerate, DeepSpeed, Lightning, Ray Train, transformers and torchmetrics on "shoal" and on gloo
	build/tools/venv/bin/python -m pytest tests/conformance/tools.py

lint: lint-python lint-native  ## formatters, linters and type checkers

lint-python: .venv/.dependencies  ## ruff and mypy
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/mypy --strict

lint-native: .venv/.dependencies build/native/.configured  ## clang-format and clang-tidy
	$(BIN)/clang-format --dry-run -Werror $(filter %.cpp %.h,$(NATIVE))
	$(MAKE) --no-print-directory -j$(JOBS) $(TIDY:%=build/tidy/%.stamp)

format:  ## rewrites Python and C++ files as the formatters want them
	$(BIN)/ruff format $(PYTHON_FILES)
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

native-test: build/native/.built  ## the native core's own tests
	$(CTEST) 300 --test-dir build/native

sim: build/native/.built  ## SIM_SECONDS of the simulated network with fresh seeds, on all cores
	build/native/shoal_simulate --seconds $(SIM_SECONDS)

sim-faults: .venv/.dependencies  ## plants faults in the state machines, and counts the schedules that find each
	$(BIN)/python native/tests/faults/count_seeds.py --cmake "$(abspath $(BIN))/cmake -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja" --jobs $(JOBS)

sanitize: build/address/.built build/thread/.built  ## the native tests under ASan and UBSan, and those with threads under TSan
	SHOAL_CUDA_SCHEDULES=10000 $(CTEST) 1200 --test-dir build/address
	SHOAL_CUDA_SCHEDULES=10000 $(CTEST) 1200 --test-dir build/thread

fuzz: $(FUZZERS:%=fuzz-%) $(PYTHON_FUZZERS:%=fuzz-%)  ## FUZZ_SECONDS of each fuzzer, under ASan and UBSan (needs Clang)

.PHONY: $(FUZZERS:%=fuzz-%) $(PYTHON_FUZZERS:%=fuzz-%)

$(FUZZERS:%=fuzz-%): fuzz-%: build/fuzz/.built
	@mkdir -p build/fuzz/corpus/$*
	build/fuzz/$* $(FUZZ_OPTIONS) -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/$*- \
	  build/fuzz/corpus/$* native/fuzz/corpus/$*

$(PYTHON_FUZZERS:%=fuzz-%): fuzz-%: .venv/.installed .venv/.fuzz
	@mkdir -p build/fuzz/corpus/$*
	$(BIN)/python tests/fuzz/$*.py $(FUZZ_OPTIONS) -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/$*- \
	  build/fuzz/corpus/$* tests/fuzz/corpus/$*

fuzz-corpus: build/fuzz/.built  ## adds to the repository's corpus what fuzzing has found that it does not cover
	for name in $(FUZZERS); do build/fuzz/$$name -merge=1 -use_counters=0 native/fuzz/corpus/$$name build/fuzz/corpus/$$name || exit 1; done

wheels: build/wheels/.tools  ## dist/: wheels for x86_64 and aarch64, with each Python that is here, and the source
	rm -rf dist
	$(WHEEL_PYTHON) packaging/wheels.py $(WHEEL_PYTHONS:%=--python %)
	$(WHEEL_BIN)/pyproject-build --no-isolation --sdist --outdir dist
	$(WHEEL_BIN)/twine check --strict dist/*

wheel-test: build/wheels/.tools  ## installs a wheel of this machine into an empty environment of each Python, and runs a job
	$(WHEEL_PYTHON) packaging/wheels.py $(WHEEL_PYTHONS:%=--python %) $(MACHINE)
	$(WHEEL_PYTHON) packaging/wheel_test.py $(WHEEL_PYTHONS)

aarch64-test: build/wheels/.tools  ## the kernels' tests and more, built for aarch64, under qemu-user
	$(WHEEL_PYTHON) packaging/aarch64_test.py

# VERSIONS="2.15.0 2.6.0": these alone.
compat: .venv/.installed  ## the package with each version of PyTorch, in environments of 5 GB, one after the other; docs/versions.md
	$(BIN)/python tests/compat/run.py $(VERSIONS)

compat-tensorflow: .venv/.installed  ## the same with versions of TensorFlow; docs/tensorflow.md
	$(BIN)/python tests/compat/run_tensorflow.py $(VERSIONS)

clean:  ## removes what was made here
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.dependencies: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0 --group dev
	touch $@

build/wheels/.tools: constraints.txt pyproject.toml
	$(PYTHON) -m venv build/wheels/tools
	$(WHEEL_BIN)/python $(INSTALL) --upgrade pip
	$(WHEEL_BIN)/python $(INSTALL) --group wheels
	touch $@

# An environment of its own, 3 GB. DeepSpeed's own build looks for PyTorch, so it comes after it.
build/tools/.dependencies: constraints.txt pyproject.toml
	$(PYTHON) -m venv build/tools/venv
	build/tools/venv/bin/python $(INSTALL) --upgrade pip
	build/tools/venv/bin/python $(INSTALL) torch==2.13.0 setuptools wheel ninja --group build
	DS_BUILD_OPS=0 build/tools/venv/bin/python $(INSTALL) \
	  --no-build-isolation --group tools
	touch $@

build/tools/.installed: build/tools/.dependencies $(NATIVE) $(shell find src -name '*.py')
	build/tools/venv/bin/python $(INSTALL) --no-build-isolation \
	  --force-reinstall --no-deps .
	touch $@

# Another one, 3 GB.
build/doors/.dependencies: constraints.txt pyproject.toml
	$(PYTHON) -m venv build/doors/venv
	build/doors/venv/bin/python $(INSTALL) --upgrade pip
	build/doors/venv/bin/python $(INSTALL) torch==2.13.0 --group build --group doors
	touch $@

build/doors/.installed: build/doors/.dependencies $(NATIVE) $(shell find src -name '*.py')
	build/doors/venv/bin/python $(INSTALL) --no-build-isolation \
	  --force-reinstall --no-deps .
	touch $@

.venv/.fuzz: .venv/.dependencies
	$(PIP) --group fuzz
	touch $@

# Editable: Python files are used where they lie; a change of the native core installs again.
.venv/.installed: .venv/.dependencies $(NATIVE)
	$(PIP) --no-build-isolation --no-deps -e . -C build-dir=build/editable
	touch $@

build/%/.built: build/%/.configured $(NATIVE)
	$(BIN)/cmake --build build/$* -j$(JOBS)
	touch $@

build/native/.configured: .venv/.dependencies CMakeLists.txt
	$(CMAKE) -DSHOAL_APART=ON -S . -B build/native
	touch $@

build/address/.configured: .venv/.dependencies CMakeLists.txt
	$(CMAKE) -S . -B build/address -DSHOAL_SANITIZE=address,undefined
	touch $@

build/fuzz/.configured: .venv/.dependencies CMakeLists.txt
	$(CMAKE) -S . -B build/fuzz -DSHOAL_TESTS=OFF -DSHOAL_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++
	touch $@

build/thread/.configured: .venv/.dependencies CMakeLists.txt
	$(CMAKE) -S . -B build/thread -DSHOAL_SANITIZE=thread
	touch $@

# A file is checked again when it or any header has changed.
build/tidy/%.stamp: % .clang-tidy build/native/.configured $(filter %.h,$(NATIVE))
	$(BIN)/clang-tidy --quiet -p build/native $<
	@mkdir -p $(@D)
	@touch $@
