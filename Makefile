# Everything a newcomer does: `make demo`, `make test`, `make lint`. Needs Python 3.11 or newer with
# venv, g++ and make; nothing else is installed outside .venv.

VENV := .venv
BIN := $(VENV)/bin
# Any of these that is new enough; `make PYTHON=...` chooses.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
# --no-compile: byte-compiling torch and pandas would take longer than the demo.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--constraint constraints.txt
# The wheel that ensurepip installs. It runs as it is, unpacked, and installs itself with the rest:
# ensurepip would take seconds to byte-compile it first, on one core.
PIP := $(VENV)/pip
UNPACK_PIP = import ensurepip, pathlib, shutil, sysconfig; \
	folder = sysconfig.get_config_var("WHEEL_PKG_DIR") or pathlib.Path(ensurepip.__file__).parent / "_bundled"; \
	wheel, = pathlib.Path(folder).glob("pip-*.whl"); \
	shutil.unpack_archive(wheel, "$(PIP)", "zip"); \
	shutil.copy(wheel, "$(PIP)")
STAGE := qsa_select
CXX_SOURCES = $(shell find kernels tests -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h')

.PHONY: setup demo test lint format wheel clean
.DELETE_ON_ERROR:

setup: $(VENV)/.test-installed

$(BIN)/python:
	@for python in $(PYTHON); do \
		$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		$$python -c 'import ensurepip, venv' 2>/dev/null || { \
			echo "make: $$python has no venv module (Debian: apt-get install python3-venv)"; exit 1; }; \
		echo "making $(VENV) with $$($$python --version)"; \
		$$python -m venv --without-pip $(VENV) && \
			{ $$python -c '$(UNPACK_PIP)' 2>/dev/null && rm -r $(PIP)/*.dist-info || $$python -m venv $(VENV); }; \
		exit; \
	done; \
	echo "make: no Python 3.11 or newer on the PATH (Debian: apt-get install python3 python3-venv)"; \
	exit 1

# The demo needs the package and its parser alone; tests and checks need their tools too. pip unpacks on one core, so two
# go at it, with no file in common; what they leave out (a torch that needs more) comes last. hatchling
# is here because an environment of its own, to build in, would take pip longer than the package.
TORCH := torch setuptools sympy mpmath networkx jinja2 MarkupSafe fsspec filelock
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing qsa-bench in $(VENV)"
	@export PYTHONPATH=$(PIP); \
		$(PIP_INSTALL) --no-warn-conflicts --no-deps $(TORCH) $$(ls $(PIP)/*.whl 2>/dev/null) & torch=$$!; \
		$(PIP_INSTALL) --no-warn-conflicts hatchling numpy pandas pyarrow safetensors nvidia-ml-py typer rich \
			tree-sitter tree-sitter-cuda && \
			$(PIP_INSTALL) --no-warn-conflicts --no-deps --no-build-isolation --editable .; \
		ended=$$?; wait $$torch || ended=1; exit $$ended
	@PYTHONPATH=$(PIP) $(BIN)/python -m pip check >/dev/null 2>&1 || $(PIP_INSTALL) --editable '.[auto]'
	@rm -rf $(PIP)
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	@echo "installing the test tools in $(VENV)"
	@$(PIP_INSTALL) --editable '.[test]'
	@touch $@

.PHONY: compiler
compiler:
	@command -v g++ >/dev/null || { \
		echo "make: g++ is not on the PATH (Debian: apt-get install g++)"; exit 1; }

demo: compiler $(VENV)/.installed
	$(BIN)/qsa-bench gate --stage $(STAGE)
	$(BIN)/qsa-bench mutate --stage $(STAGE)
	$(BIN)/qsa-bench report latest --quiet

test: compiler $(VENV)/.test-installed
	$(BIN)/python -m pytest

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	@if command -v nvcc >/dev/null; then \
		set -ex; $(BIN)/qsa-bench build --target cuda --all-architectures --warnings-as-errors --few-shapes; \
		$(BIN)/qsa-bench build --target cuda --bench --arch 90 --warnings-as-errors; \
	else \
		echo "lint: nvcc is not on the PATH, so no kernel was compiled for the GPU"; \
	fi

format: $(VENV)/.test-installed
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

wheel: $(VENV)/.installed
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find qsa_bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
