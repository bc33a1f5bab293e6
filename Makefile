# Everything runs in its own virtual environment; nothing else of the machine is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint unit docs wheel-test faults audit bench clean
.DEFAULT_GOAL := demo

# --- installing ---------------------------------------------------------------------------------
# A stamp for each set of extras: a changed pyproject.toml or constraints.txt installs again.
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

# --- what people call ---------------------------------------------------------------------------
demo: $(VENV)/.installed  ## train on the embedded demo data, print a table, write a picture
	@$(BIN)/llpauc demo --out demo

test: lint unit  ## everything that CI checks

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.installed-test
	@# Two test processes share two cores: threads that spin while they wait would starve each other.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile

docs: $(VENV)/.installed-docs  ## the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "open site/index.html, or look at it with: $(BIN)/mkdocs serve"

wheel-test: $(VENV)/.installed-test  ## the built wheel without the checkout, the demo too (2 minutes)
	LLPAUC_WHEEL_DEMO=1 $(BIN)/python -m pytest tests/system/test_wheel.py

faults: $(VENV)/.installed-test  ## kill, damage and hostile requests, at length (half an hour to an hour)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest tests/system/faults -s

audit: $(VENV)/.installed-test  ## pinned versions against published advisories; needs the network
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r constraints.txt

bench: $(VENV)/.installed-bench  ## every benchmark beside its rival, into benchmarks/results.json
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist demo site
