# Every target sets up what it needs by itself, from python3, pip, git, a C compiler and cargo.
#
#   make demo     from raw text to a model that generates text, in a few minutes; with DEMO_FLAGS=--quick in one
#   make test     environment, native build, cargo test, pytest
#   make lint     ruff, mypy, clippy, rustfmt, and the stub of the native module against the module
#   make bench    runs benchmarks; dated results go to benchmarks/results/
#   make lock     updates requirements/ from pyproject.toml; LOCK_FLAGS=--upgrade for newer versions
#   make wheel    builds a wheel for this platform in dist/
#   make check-wheel   installs the wheel into an empty environment and uses it there
#   make check-macos   checks that the core compiles for macOS, if Rust has that target
#   make dist     wheels for Linux systems since 2014 and an sdist in dist/, each checked
#
# With PROFILE=quick any of them compiles the native module as `make demo` does.
#
# Stamp files in .venv keep a second run quick: the environment is rebuilt only when the lock changes,
# the native module only when a Rust file changes. `make demo` and `make` install what ramlet needs to build and run,
# 200 MB; tests and checks install their tools into the same environment, with PyTorch several gigabytes.

PYTHON ?= python3
CARGO_FLAGS ?=
# Four processes, for two cores: most tests wait for the disk and for processes that they start. All tests of a file run
# in the same process, so that shared fixtures are created once. Keep the order of the files: xdist would move files with
# few tests to the end, and those have the longest tests.
PYTEST_FLAGS ?= -n 4 --dist loadfile --no-loadscope-reorder
DEMO_FLAGS ?=
LOCK_FLAGS ?=
WHEEL_FLAGS ?= --strip --out dist

VENV := .venv
BIN := $(VENV)/bin
# The same interpreter for maturin and clippy, or each would rebuild PyO3 after the other.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# Use the system's certificates, as pip does, for users behind a company proxy.
export UV_SYSTEM_CERTS ?= 1
# The profile of Cargo.toml with which the native module is compiled: release, or quick.
PROFILE := release
LOCK := UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.10 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs')

.PHONY: all env build test test-rust test-python lint lint-python lint-rust lint-stub format bench demo lock wheel \
	check-wheel check-macos dist clean
all: build

env: $(VENV)/.tools
build: $(VENV)/$(if $(filter quick,$(PROFILE)),.quick,.built)

# Debian's python3 has no ensurepip, so there the system's pip installs into the environment.
$(VENV)/.installed: requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "ramlet needs Python 3.10 or newer: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null && $(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --without-pip $(VENV)
	@if $(BIN)/python -c 'import pip' 2>/dev/null; then pip="$(BIN)/python -m pip"; \
		else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
		grep -A 64 '^uv==' $< | awk 'NR > 1 && !/--hash/ { exit } { print }' > $(VENV)/uv.txt; \
		$$pip install --quiet --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r $<
	@touch $@

# Compile bytecode once here: if PYTHONDONTWRITEBYTECODE is set, each of the hundreds of processes that the tests start
# would spend two seconds compiling torch.
$(VENV)/.tools: $(VENV)/.installed requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.dist: $(VENV)/.tools requirements/dist.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dist.txt
	@touch $@

# The editable install creates the `ramlet` script; it is repeated only when the metadata changes.
$(VENV)/.editable: $(VENV)/.installed pyproject.toml
	@echo "compiling the native module: takes a minute or a few the first time"
	MATURIN_PEP517_ARGS="--profile $(PROFILE)" \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.built: $(VENV)/.editable $(RUST)
	$(BIN)/maturin develop --release --skip-install $(CARGO_FLAGS)
	@rm -f $(VENV)/.quick
	@touch $@

# Built sooner, for those who want to see it work (Cargo.toml says how).
$(VENV)/.quick: PROFILE := quick
$(VENV)/.quick: $(VENV)/.editable $(RUST)
	$(BIN)/maturin develop --profile quick --skip-install $(CARGO_FLAGS)
	@rm -f $(VENV)/.built
	@touch $@

test: test-rust test-python

# With the quick profile the dependencies, C code and macros of the native module are used again. The crate itself is
# compiled as by a plain `cargo test`.
RUST_CHECKS := $(CARGO_FLAGS) $(if $(filter quick,$(PROFILE)),--profile quick --config .ci/checked.toml)

# Without the `python` feature the tests do not link libpython, which many Python builds do not have.
test-rust:
	cargo test --quiet $(RUST_CHECKS)

test-python: env build
	$(BIN)/python -m compileall -q python
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: lint-python lint-rust lint-stub

lint-python: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-stub: env build
	$(BIN)/python -m mypy.stubtest ramlet._native --concise

# With the bindings, which only Python's tests call.
lint-rust: env
	cargo fmt --check
	cargo clippy --quiet --all-targets --features python $(RUST_CHECKS) -- -D warnings

format: env
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	cargo fmt

bench: env build
	$(BIN)/python benchmarks/bpe_train.py
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/encode.py --flat --gigabytes 10
	$(BIN)/python benchmarks/prepare.py

# With the quick build, unless there is another.
demo: $(if $(wildcard $(VENV)/.built),build,$(VENV)/.quick)
	$(BIN)/ramlet demo $(DEMO_FLAGS)

# No header and no index URLs: the lock says what to install, the machine's pip settings say from where.
lock: $(VENV)/.installed
	$(LOCK) $(LOCK_FLAGS) --group dev --extra hf --extra gpt2 --output-file requirements/dev.txt
	$(LOCK) --group build --constraint requirements/dev.txt --output-file requirements/build.txt
	$(LOCK) --group dist --constraint requirements/dev.txt --output-file requirements/dist.txt

wheel: $(VENV)/.installed
	$(BIN)/maturin build --profile $(PROFILE) $(WHEEL_FLAGS) $(CARGO_FLAGS)

# As the tests use it: stripping it would link it again, which takes minutes with the release profile.
check-wheel: env build
	rm -rf target/wheels
	$(MAKE) wheel WHEEL_FLAGS="--out target/wheels"
	.ci/wheel target/wheels/*.whl

# zig compiles and links for glibc 2.17, whatever this machine has. The wheel for 64-bit ARM is built where Rust has that
# target (rustup target add $(ARM)), and is not run. An sdist must build, for which the quick profile is enough.
OLDER := --release --strip --zig --compatibility manylinux2014 --out dist
ARM := aarch64-unknown-linux-gnu
dist: $(VENV)/.dist
	rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build $(OLDER) $(CARGO_FLAGS)
	@if [ -d "$$(rustc --print target-libdir --target $(ARM))" ]; then set -x; \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build $(OLDER) --target $(ARM) $(CARGO_FLAGS); \
		else echo "no wheel for 64-bit ARM: Rust does not have the target $(ARM)"; fi
	$(BIN)/maturin sdist --out dist
	$(BIN)/twine check --strict dist/*
	.ci/wheel dist/*-manylinux*x86_64.whl
	.ci/sdist dist/*.tar.gz

MACOS := aarch64-apple-darwin
check-macos: $(VENV)/.dist
	@if [ -d "$$(rustc --print target-libdir --target $(MACOS))" ]; then set -x; \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cargo-zigbuild check --quiet --lib --target $(MACOS) $(CARGO_FLAGS); \
		else echo "not checked for macOS: Rust does not have the target $(MACOS)"; fi

clean:
	rm -rf $(VENV) dist target python/ramlet/*.so
