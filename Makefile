# Works with plain python3, pip and make. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# a hundred processes that tests start share what the first one compiled
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check format bench bench-quick coverage browser fuzz sbom lock audit-dependencies docs paper dist peers clean

# the core alone: what a user installs
.venv/.core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

# the versions of the lock file without its hashes, so that two installs a month apart agree
.venv/constraints.txt: requirements-dev.lock .venv/.core
	grep -E '^[A-Za-z0-9].*==' $< | sed 's/ \\$$//' > $@

# everything that the tests need; torch first and pinned, so that nothing else pulls a larger build
.venv/.dev: .venv/.core pyproject.toml .venv/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c .venv/constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c .venv/constraints.txt -e ".[dev]"
	touch $@

demo: .venv/.core
	$(BIN)/unsoftmax recover demo --out demo

# a Chromium for the tests of the reports: Debian's, where this user may install packages; else those tests are skipped
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
browser:
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the tests of the reports"; \
		apt-get update -qq >/dev/null || true; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends chromium >/dev/null && exit 0; \
	fi; \
	echo "No Chromium here and none could be installed: the browser tests are skipped. Install one (apt-get install chromium)."

test: .venv/.dev browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

check: test

# the rivals of the benchmarks: heavy, so apart from what the tests need
.venv/.bench: .venv/.dev pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[bench]"
	touch $@

bench: .venv/.bench
	$(BIN)/python benchmarks/bench.py

bench-quick: .venv/.bench
	$(BIN)/python benchmarks/bench.py --quick

# lines and branches that the suite runs, processes that it starts included
coverage: .venv/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 0
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# every reader of foreign bytes with 100,000 cases each, and the journal killed at every system call
fuzz: .venv/.dev
	$(BIN)/python tests/fuzz.py 100000
	UNSOFTMAX_DAMAGED=1000 UNSOFTMAX_KILL_STRIDE=1 $(BIN)/pytest -n 2 tests/faults/test_journal_damage.py

# what is installed, as CycloneDX JSON
sbom: .venv/.dev
	$(BIN)/python tests/sbom.py > sbom.json

# the versions that the tests run with, with hashes; install them by `pip install --require-hashes -r requirements-dev.lock`
lock: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.4"
	echo torch==2.13.0 > .venv/torch.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --constraint .venv/torch.txt \
		--generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-dev.lock

# known problems of what is installed; SECURITY.md says why two of starlette are left out
audit-dependencies: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check "pip-audit>=2.7"
	$(BIN)/pip-audit --skip-editable --ignore-vuln CVE-2025-54121 --ignore-vuln CVE-2025-62727

# the documentation as a site, links checked; every warning is an error
docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

# the figures of docs/theory/papers.md, measured again
paper: .venv/.dev
	$(BIN)/python benchmarks/paper.py

# wheel and source package, installed into a fresh environment and tried there
dist: .venv/.core pyproject.toml
	rm -rf dist .venv-dist
	$(BIN)/pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd .venv-dist && bin/unsoftmax --version && bin/unsoftmax recover demo:attention,width=8 --out try >/dev/null && test -s try/report.html
	rm -rf .venv-dist

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-dist demo dist site

# a real vLLM on this machine's CPU (3.5 GB, in an environment of its own), asked once; its answers are kept for the tests
peers: .venv/.dev
	$(BIN)/python tests/peers/record_vllm.py .peers/vllm .peers/tiny --install
