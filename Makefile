# Every target installs what it needs into .venv; nothing else on the machine is changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Test processes share the cores: waiting threads must not spin.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest

.PHONY: demo test test-fast lint unit docs wheel-test faults lock audit bench clean
.DEFAULT_GOAL := demo

# --- installation -------------------------------------------------------------------------------
# One stamp file per set of extras: a changed pyproject.toml or constraints.txt installs again.
define install
	@echo "installing llpauc$(1) into $(VENV) (some minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(1)"
	@touch $@
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,)

$(VENV)/.installed-test: pyproject.toml constraints.txt
	$(call install,[test])

$(VENV)/.installed-docs: pyproject.toml constraints.txt
	$(call install,[docs])

$(VENV)/.installed-bench: pyproject.toml constraints.txt
	$(call install,[test$(comma)bench])

comma := ,

# --- targets ------------------------------------------------------------------------------------
demo: $(VENV)/.installed  ## train on generated data, print a table, write a figure
	@$(BIN)/llpauc demo --out demo

test: lint unit  ## everything that CI checks

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.installed-test
	$(PYTEST) -n 2 --dist loadfile

test-fast: $(VENV)/.installed-test  ## the quick tests, under 2 minutes
	$(PYTEST) -n 2 --dist loadfile -m "not slow" src tests/losses tests/metrics tests/evaluation \
	  tests/models tests/storage tests/recommend tests/report tests/system/test_architecture.py \
	  tests/system/test_vocabulary.py

docs: $(VENV)/.installed-docs  ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "open site/index.html, or run: $(BIN)/mkdocs serve"

wheel-test: $(VENV)/.installed-test  ## the built wheel in a new environment, with the demo
	LLPAUC_WHEEL_DEMO=1 $(BIN)/python -m pytest tests/system/test_wheel.py

faults: $(VENV)/.installed-test  ## kills, damaged files and hostile requests (half an hour to an hour)
	$(PYTEST) tests/system/faults -s

lock: $(VENV)/.installed-test  ## requirements.lock: constraints.txt with hashes, for this platform
	$(BIN)/python .ci/lock.py

audit: $(VENV)/.installed-test  ## pinned versions against published advisories; needs the network
	$(BIN)/python -m pip install --quiet pip-audit==2.10.1
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r constraints.txt

bench: $(VENV)/.installed-bench  ## every benchmark next to its rival, into benchmarks/results.json
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist demo site
