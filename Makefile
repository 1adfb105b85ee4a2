# Every target sets up .venv by itself, once: again only when pyproject.toml or constraints.txt have changed.
#
#   PYTHON       the interpreter that .venv is made from (3.10 or newer)
#   PIP_ARGS     passed on to pip, for instance an index with torch's CPU build (see README.md, Installation)
#   PYTEST_ARGS  passed on to pytest, for instance PYTEST_ARGS="-k engine -x"
#   VLLM_PACKAGE, VLLM_PIP_ARGS  for vLLM's own environment (see run_scripts/vllm_env.sh)
PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VLLM_STAMP := .venv-vllm/.ready
# benchmarks/engines.py needs vLLM: it runs once `make vllm-env` has been called. benchmarks/gpu.py needs a GPU.
UNABLE := $(if $(wildcard $(VLLM_STAMP)),,benchmarks/engines.py) $(if $(shell command -v nvidia-smi),,benchmarks/gpu.py)
BENCHMARKS := $(sort $(filter-out benchmarks/_% $(UNABLE),$(wildcard benchmarks/*.py)))

.PHONY: help demo results results-quick test test-slow test-vllm lint format bench prove install vllm-env clean
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(STAMP)  ## both training phases and all evaluations on a tiny model (6 to 8 minutes, 2 cores)
	$(RUN) -m xrl_alignment.demo

results: $(STAMP)  ## every figure of docs/results.md, from nothing (a day on 2 cores; goes on where it was stopped)
	$(RUN) -m xrl_alignment.results --cfg-path configs/results/full.yaml --page docs/results.md

results-quick: $(STAMP)  ## the same experiments at a fiftieth of the size
	$(RUN) -m xrl_alignment.results --cfg-path configs/results/quick.yaml

test: $(STAMP)  ## the test suite, without the tests marked slow
	$(RUN) -m pytest $(PYTEST_ARGS)

test-slow: $(STAMP)  ## the tests marked slow
	$(RUN) -m pytest -m slow $(PYTEST_ARGS)

test-vllm: $(STAMP) $(VLLM_STAMP)  ## the tests marked vllm (real vLLM processes)
	$(RUN) -m pytest -m vllm $(PYTEST_ARGS)

lint: $(STAMP)  ## rules and formatting (ruff), types (mypy), import contracts (import-linter), shell scripts (shellcheck)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/shellcheck -x .ci/run run_scripts/*.sh run_scripts/*/*.sh run_scripts/*/*.pbs run_scripts/*/*.sbatch

format: $(STAMP)  ## let ruff format the code
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: $(STAMP)  ## every benchmark: tables on the screen, JSON in output/benchmarks/
	@mkdir -p output/benchmarks
	@set -e; for file in $(BENCHMARKS); do \
	  echo "== $$file"; $(RUN) $$file --json output/benchmarks/$$(basename $$file .py).json; done

prove: $(STAMP)  ## play every official game on both engines and compare every word (games: .venv/bin/alfworld-download, or ALFWORLD_DATA)
	$(RUN) -m xrl_alignment.environments.prove --all --out docs/equivalence.md

install: $(STAMP)  ## only set up .venv

vllm-env: $(VLLM_STAMP)  ## vLLM in an environment of its own, .venv-vllm (2 minutes, 2 to 7 GB)

$(STAMP): pyproject.toml constraints.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: $(PYTHON) is older than Python 3.10; name a newer one: make PYTHON=python3.12 …" >&2; exit 2; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	  echo "error: no C++ compiler found; ALFWorld's planner is compiled while it is installed (install g++)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@# On the path, because that planner's build calls plain `python`, which not every system has.
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(RUN) -m pip install --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VLLM_STAMP): export PYTHON := $(PYTHON)
$(VLLM_STAMP): export VLLM_PACKAGE := $(VLLM_PACKAGE)
$(VLLM_STAMP): export VLLM_PIP_ARGS := $(VLLM_PIP_ARGS)
$(VLLM_STAMP):
	run_scripts/vllm_env.sh $(@D)

clean:  ## remove .venv, .venv-vllm and caches (results in output/ stay)
	rm -rf $(VENV) .venv-vllm build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
