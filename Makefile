# `make` lists the targets. Everything is installed into .venv and build/.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# The tests start a thousand Pythons: each would compile again what it imports of them.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
# Python compiles what is imported, which is a fifth of it all.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)
# Environments with different Sparks may be made side by side.
INSTALL = $(PIP) -C build-dir=$(VENV)/build \
	-C cmake.define.SHMRING_JVM=ON -C cmake.define.SHMRING_PYSPARK_JARS=$(JARS)
JARS = $$($(BIN)/python -c 'import os, pyspark; print(os.path.join(pyspark.__path__[0], "jars"))')
CORE := $(shell find native -type f -not -path '*/tests/*' -not -name '*.pyc' 2>/dev/null) CMakeLists.txt
PACKAGE := $(shell find src -type f -not -name '*.pyc' 2>/dev/null)

# A file of tests is a worker's as a whole; tests/conftest.py has the order.
# Half of the time of one that has Spark is waiting: two workers for each core of a small machine.
DIVIDED = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
WORKERS ?= 4
# Whether the C tests and what pytest needs are done; .ci/run does them beside pip: PREPARED=true
PREPARED ?= false
MINUTES ?= 2
SECONDS ?= 60
KILLS ?= 3000
ROUNDS ?= 50
SPARK ?=
FILES ?=
PORT ?= 8000
VERSIONS ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- setting up ------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/installed ## make .venv with shmring and what the tests need

$(VENV)/bin/python:
	@scripts/need cc gcc java openjdk-17-jdk-headless javac openjdk-17-jdk-headless
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'shmring needs Python 3.11 or later; set PYTHON=...' >&2; exit 1; }
	@echo 'making $(VENV) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) pip  # the one that comes with Python 3.11 takes twice the time for each package

# pyspark first: the jar is compiled against its jars.
$(VENV)/pyspark: $(VENV)/bin/python $(CONSTRAINTS)
	@echo 'installing pyspark into $(VENV) ...'
	@$(PIP) pyspark
	@touch $@

$(VENV)/installed: $(VENV)/pyspark pyproject.toml $(CONSTRAINTS) $(CORE) $(PACKAGE)
	@echo 'installing shmring and its test packages into $(VENV) ...'
	@$(INSTALL) '.[test,demo]'
	@touch $@

# The packages of one of pyproject.toml's extras: what is installed of shmring stays.
$(VENV)/bench $(VENV)/docs $(VENV)/lint: $(VENV)/%: pyproject.toml $(CONSTRAINTS) $(VENV)/bin/python
	@$(PIP) $$($(BIN)/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$*'])")
	@touch $@

RELEASE_TOOLS := ziglang auditwheel abi3audit wheel build scikit-build-core hatch-fancy-pypi-readme cmake ninja \
	cyclonedx-bom
$(VENV)/release: $(CONSTRAINTS) $(VENV)/bin/python
	@$(PIP) $(RELEASE_TOOLS)
	@touch $@

# --- what one does with it ---------------------------------------------------------

.PHONY: demo
demo: $(VENV)/installed ## Spark jobs on rows of TPC-H, in its own Python workers and in sidecars: speed, loads, memory
	$(BIN)/python spark_examples/score_lineitem.py

.PHONY: demo-durable
demo-durable: $(VENV)/installed ## kill everything with -9, start again: nothing committed is missing or double
	$(BIN)/python spark_examples/durable_demo.py

# Debian keeps the server's programs out of PATH; its name for what brings them is postgresql.
.PHONY: postgresql
postgresql:
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || scripts/need initdb postgresql

$(VENV)/spark.jsa: $(VENV)/pyspark tests/spark_start.py | $(VENV)/installed
	@echo 'writing the classes of Spark into $@ ...'
	@$(BIN)/python tests/spark_start.py > $@.log 2>&1 || \
		echo 'the tests start Spark without it, and slower; why is in $@.log'

.PHONY: test
test: $(VENV)/installed postgresql ## the C and the Python tests, Spark's included
	@$(PREPARED) || $(MAKE) --no-print-directory --jobs 2 ctest $(VENV)/spark.jsa compiled
	$(BIN)/pytest $(DIVIDED) --durations 10

# The first worker of a clean checkout would do it, and the others wait.
.PHONY: compiled
compiled: $(VENV)/installed
	@$(BIN)/pytest --collect-only --quiet > /dev/null || true  # the run says what is wrong

.PHONY: spark-tests
spark-tests: $(VENV)/installed ## Spark's own tests of Python functions, over rings; with SPARK=its sources, FILES='arrow/test_arrow_map.py ...'
	$(BIN)/python tests/sparks_tests.py $(SPARK)/python/pyspark/sql/tests $(FILES)

.PHONY: test-long
test-long: $(VENV)/installed $(VENV)/spark.jsa postgresql ## what `make test` leaves out: clusters, two hosts, speculation, a /dev/shm of 64 MB, many kills, seeds and variants
	$(BIN)/pytest $(DIVIDED) -m long

.PHONY: check
check: $(VENV)/installed ## in under a minute: those without Spark, other JVMs, kills and databases
	@$(MAKE) --no-print-directory --jobs 2 ctest quick

.PHONY: quick
quick:
	$(BIN)/pytest $(DIVIDED) --quiet -m 'not (spark or java or kill or crash or database or slow or long)' \
		--ignore tests/jvm --ignore tests/spark --ignore tests/table_ring

# CHANGE: edit this for a new version of Spark
.PHONY: versions
versions: ## the Spark tests with Spark 4.1 to 4.3, other Pythons, pandas, pyarrow and Javas, and beside Comet, Iceberg and Delta; an hour: SPARK='4.1 4.3' FILES='tests/spark/functions/test_direct.py ...'
	@$(PYTHON) scripts/versions.py $(SPARK) --tests $(FILES)

.PHONY: kills
kills: $(VENV)/installed postgresql ## kill queues and journal thousands of times, a table's users for a minute, Spark on two hosts: ROUNDS=50
	SHMRING_KILLS=$(KILLS) SHMRING_KILL_SECONDS=$(SECONDS) SHMRING_KILL_ROUNDS=$(ROUNDS) \
		$(BIN)/pytest -m kill tests/durable tests/spark/test_kill_direct.py tests/spark/test_kill_unchanged.py

.PHONY: bench
bench: $(VENV)/installed $(VENV)/bench postgresql ## every benchmark, side by side: a table, out/bench.json, out/bench.png
	@mkdir -p out
	$(BIN)/python benchmarks/run.py --json out/bench.json --plot out/bench.png

.PHONY: gpu-check
gpu-check: ## tests and benchmark of pinned rings on this machine's GPU: PYTHON= one that has torch
	@$(PYTHON) -c 'import torch; assert torch.cuda.is_available(), "torch finds no GPU here"'
	@scripts/here $(PYTHON) -m pytest -q -p no:cacheprovider tests/test_gpu.py
	@scripts/here $(PYTHON) benchmarks/run.py --only gpu --rounds 3 --seconds 0.3

.PHONY: cores
cores: ## the benchmark of many processes, for a machine with a core for each, in under four minutes: PYTHON= one that has click and rich
	@scripts/here $(PYTHON) benchmarks/run.py --only cores --rounds 5 --seconds 0.25

# --- documentation -------------------------------------------------------------------

JAVA_API := $(wildcard native/jvm/java/io/shmring/*.java native/jvm/java/io/shmring/arrow/*.java)
out/javadoc/java/index.html: $(VENV)/installed $(JAVA_API)
	@scripts/need javadoc openjdk-17-jdk-headless
	@rm -rf $(@D)
	@javadoc -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -quiet -notimestamp -Xdoclint:none -d $(@D) -windowtitle shmring \
		-cp "$(JARS)/*" -sourcepath native/jvm/java io.shmring io.shmring.arrow

.PHONY: docs
docs: $(VENV)/docs out/javadoc/java/index.html ## the documentation as a site, in out/docs
	@$(BIN)/sphinx-build -q -W --keep-going -d out/doctrees docs out/docs || \
		{ rm -rf out/doctrees; exit 1; }  # a page that is not read again would not be warned of again

.PHONY: site
site: docs ## the pages of this version beside those of others, with a switch: copy the published site to out/site before
	@$(PYTHON) scripts/site.py out/docs \
		"$$($(BIN)/python -c 'import shmring; print(shmring.__version__)')" out/site

.PHONY: docs-open
docs-open: docs ## build the documentation and serve it: PORT=8000
	@echo 'http://localhost:$(PORT)/ until Ctrl-C'
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory out/docs $(PORT)

# --- checks ---------------------------------------------------------------------------

CMAKE := $(BIN)/cmake
# Quiet unless it fails. A build that was killed, for want of memory for one, has not written why.
# Ninja would speak of make's job server, which recipes without a + do not get.
BUILD = build() { \
	MAKEFLAGS= $(CMAKE) --build "$$@" > $$1.log || \
		{ status=$$?; cat $$1.log; echo "cmake --build $$1: exit status $$status" >&2; exit 1; }; \
	}; build
$(BIN)/cmake: $(VENV)/bin/python
	@$(PIP) cmake ninja

.PHONY: build/ctest
build/ctest: $(BIN)/cmake
	@$(CMAKE) -S . -B $@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHMRING_TESTS=ON > /dev/null
	@$(BUILD) $@

.PHONY: ctest
ctest: build/ctest ## the core's C tests
	@$(BIN)/ctest --test-dir build/ctest --output-on-failure -j 4

.PHONY: sanitize
sanitize: $(BIN)/cmake ## the C tests under AddressSanitizer and UBSan, those with threads under ThreadSanitizer
	@for s in address,undefined thread; do \
		dir=build/sanitize-$${s%%,*}; \
		only=; [ $$s != thread ] || only=with_threads; \
		$(CMAKE) -S . -B $$dir -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
			-DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHMRING_TESTS=ON -DSHMRING_SANITIZE=$$s > /dev/null; \
		$(BUILD) $$dir --target $${only:-all}; \
		echo "== $$s"; \
		$(BIN)/ctest --test-dir $$dir --output-on-failure -j 4 $${only:+-L $$only}; \
	done

.PHONY: lint
lint: $(VENV)/installed $(VENV)/lint ## ruff, pyright (strict on the package), clang-format, the layers, openings of comments, workflows; that breaks fit the core
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	@$(PYTHON) scripts/arrows.py --check
	@$(PYTHON) scripts/comments.py
	@$(MAKE) --no-print-directory workflows
	@PYTHONPATH=native $(PYTHON) -m explore.broken && PYTHONPATH=native $(PYTHON) -m killpoints.broken

.PHONY: workflows
workflows: $(VENV)/lint ## the forge's workflows: their form, and what zizmor knows to be unsafe; the hooks of commits
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/zizmor --offline --quiet --no-progress .github
	@$(BIN)/pre-commit validate-config

.PHONY: arrows
arrows: ## who uses whom, layer by layer, read from the code
	@$(PYTHON) scripts/arrows.py

.PHONY: format
format: $(VENV)/lint ## let the formatters have their way
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format --quiet
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format -i

# --- proofs -------------------------------------------------------------------------

.PHONY: build/proofs
build/proofs: $(BIN)/cmake
	@$(CMAKE) -S . -B $@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DSHMRING_KILLPOINTS=ON -DSHMRING_EXPLORE=ON > /dev/null
	@$(BUILD) $@

.PHONY: explore
explore: build/proofs ## run the core through every interleaving of small cases
	@PYTHONPATH=native $(BIN)/python -m explore.broken build/proofs/broken
	@build/proofs/native/explore/explore
	@build/proofs/native/explore/explore --weak
	@PYTHONPATH=native $(BIN)/python -m explore.orderings build/proofs/native/explore/explore --known

.PHONY: orderings
orderings: build/proofs ## take away each memory ordering of the core, write docs/orderings.md; FILES='cells.h takes.c'
	@PYTHONPATH=native $(BIN)/python -m explore.orderings build/proofs/native/explore/explore $(FILES)

.PHONY: kill-points
kill-points: build/proofs ## kill a process after every instruction of every operation
	@PYTHONPATH=native $(BIN)/python -m killpoints.broken build/proofs/broken
	@build/proofs/native/killpoints/killpoints

.PHONY: soak
soak: build/ctest ## traffic with random kills and stops, every message accounted for: MINUTES=2
	@build/ctest/native/core/tests/soak $$(($(MINUTES) * 60))

.PHONY: fuzz
fuzz: $(VENV)/installed $(BIN)/cmake ## libFuzzer and sanitizers on attach, readers, table and Arrow messages: SECONDS=60
	@scripts/need clang clang
	@CC=clang $(CMAKE) -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_BUILD_TYPE=RelWithDebInfo -DSHMRING_FUZZ=ON > /dev/null
	@$(BUILD) build/fuzz
	@$(BIN)/python native/fuzz/seeds.py build/fuzz/native/fuzz/corpus/fuzz_arrow
	@native/fuzz/fuzz build/fuzz/native/fuzz $(SECONDS)

.PHONY: aarch64
aarch64: $(BIN)/cmake ## the core's C tests on aarch64, under qemu-user
	@CMAKE=$(CMAKE) CTEST=$(BIN)/ctest scripts/aarch64 build/aarch64

# --- what is published -----------------------------------------------------------------

.PHONY: wheels
wheels: $(VENV)/release docs ## wheels, sdist and Maven artifact for x86-64 and aarch64, in dist/
	@$(BIN)/python scripts/wheels.py dist build/release

.PHONY: sbom
sbom: $(VENV)/release ## after `make wheels`: the wheel's bill of materials, dist/shmring.cdx.json
	@rm -rf build/sbom
	@$(PYTHON) -m venv --without-pip build/sbom
	@$(BIN)/pip --python build/sbom/bin/python install --quiet --no-compile -c $(CONSTRAINTS) dist/*_$$(uname -m).whl
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-format JSON --output-file dist/shmring.cdx.json build/sbom/bin/python

.PHONY: wheel
wheel: $(VENV)/release docs ## make this machine's wheel, in build/wheel-check/dist
	@$(BIN)/python scripts/wheels.py build/wheel-check/dist build/wheel-check --here

.PHONY: wheel-check
wheel-check: wheel ## run README and the notebook from this machine's wheel where there is no compiler and no JDK
	@$(BIN)/python scripts/release_check.py build/wheel-check/dist build/wheel-check --here

.PHONY: release-check
release-check: wheels test-long ## make them, use them where there is no compiler and no JDK, test them with every Python
	@$(BIN)/python scripts/release_check.py dist build/release
	@$(BIN)/python scripts/pythons.py dist build/release

.PHONY: pythons
pythons: ## the quick tests, with the wheel in dist/ and every Python that is here: VERSIONS='3.13'
	@$(PYTHON) scripts/pythons.py dist build/release $(VERSIONS)

.PHONY: clean
clean: ## remove what make has made, the data apart
	rm -rf build out .venv
