# Everything runs in .venv, made from constraints.txt. `make test` and `make demo` need nothing but python3 and make.

PYTHON ?= python3
JOBS ?= 3
BIN := .venv/bin

.PHONY: setup etcd sshd slurm test demo lint format soak bench images clean

setup: .venv/.installed

# The constraints are not a nicety: an unpinned torch brings gigabytes of CUDA libraries. So does TensorFlow's other form.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,tensorflow-cpu,zoo,dev]'
	@touch $@

test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations 40

# Optional: without it the tests on etcd 3.4 are skipped.
etcd: setup
	@.ci/get-etcd

# Optional: without it the tests of hosts that are reached over ssh are skipped.
sshd: setup
	@.ci/get-sshd

# Optional: without it, and without root, the tests on Slurm are skipped.
slurm: setup
	@.ci/get-slurm

demo: setup
	$(BIN)/python model_zoo/digits/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: setup
	$(BIN)/python -m pytest -m soak --timeout 1800

bench: setup
	$(BIN)/python -m benchmarks.recovery

# With docker where its engine runs, else with buildah; see docker/build for the builder's own options.
images:
	docker/build service worker

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
