# Everything works from a fresh clone: each target makes what it needs first.
WORKS := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c '$(WORKS)' 2>&- && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet
JARS := tests/apache/jars/.complete
SPARK := .venv-spark
# The tests of a file stay together, because they share a broker. They wait for processes more than they compute: on few cores
# one file more than there are cores is played at a time.
FILES := $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n + 1 : 4)))
TOGETHER ?= -n $(FILES) --dist loadfile --no-loadscope-reorder

.PHONY: run test test-slow test-spark search simulate mutants lint bench rounds fuzz format status matrix spark two-phase jars clean

run: $(VENV)/.installed
	$(BIN)/ottla demo

test: $(VENV)/.test $(JARS) lint
	$(BIN)/python -m pytest $(TOGETHER) -m "not slow" --durations=15

test-slow: $(VENV)/.test $(JARS)
	OTTLA_EXAMPLES=search $(BIN)/python -m pytest -m slow

# Pipelines on Spark, the long way: kills, a cluster of Spark, a server of Spark Connect, Apache Kafka below; and Spark's own
# connector, on a node and side by side with ours. Of the kills it prints where they fell, and what they have left behind.
test-spark: $(VENV)/.test $(JARS) $(SPARK)/.installed tests/spark/jars/.complete
	$(PIP) -e '.[connect]'
	$(BIN)/python -m pytest -s -m slow tests/pipeline
	$(MAKE) spark

# Properties are tried with the same examples by every `make test`; this tries others, again and again.
search: $(VENV)/.test
	OTTLA_EXAMPLES=search $(BIN)/python -m pytest -m "not slow" $$(grep -rl "from hypothesis" tests --include="test_*.py")

# A cluster in one process, through many seeds. One that fails is shrunk, and the command that plays it again is printed. Without
# FIRST the seeds are new ones, by the clock. PLAY=operated: somebody moves replicas meanwhile; PLAY=voters: the voters change.
FIRST ?= $(shell date +%s)
SEEDS ?= 2000
simulate: $(VENV)/.test
	cd tests && ../$(BIN)/python -m sim.simulate $(FIRST) $(SEEDS) $(addprefix --,$(PLAY))

# Mistakes planted into the cluster: are they noticed, and how soon?
mutants: $(VENV)/.test
	cd tests && ../$(BIN)/python -m sim.hunt

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Spark's own connector, beside which ours is measured, has an environment of its own.
bench: $(VENV)/.test $(JARS) $(SPARK)/.installed tests/spark/jars/.complete
	$(BIN)/python -m bench

# Three processes are killed, paused, restarted and cut off from each other while somebody writes: ROUNDS=50 SEED=...
rounds: $(VENV)/.test $(JARS)
	OTTLA_ROUNDS=$(or $(ROUNDS),50) OTTLA_SEED=$(or $(SEED),0) $(BIN)/python -m pytest -s -m slow tests/cluster/test_rounds.py

fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz --requests 1000000

status: $(VENV)/.test
	$(BIN)/python tests/status.py

matrix: $(VENV)/.test $(JARS)
	$(BIN)/python tests/compat/matrix.py

# Spark's Kafka connector against a node. It has an environment of its own: half a gigabyte that nothing else needs.
spark: $(SPARK)/.installed tests/spark/jars/.complete
	$(SPARK)/bin/python tests/spark/batch.py

# One transaction over topics and a database, killed at every step. It needs PostgreSQL's server (Debian: postgresql).
two-phase: $(VENV)/.test
	$(PIP) 'psycopg[binary]'
	$(BIN)/python -m pytest -ra tests/operations/test_two_phase_commit.py

jars: $(JARS)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "there is no Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=/path/to/one"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing ottla and Spark: half a gigabyte, which may take some minutes without a word ..."
	$(PIP) -e '.[spark]'
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing ottla and what its tests need ..."
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.installed

# Apache Kafka, for the tests that compare with it and for the benchmark.
$(JARS): tests/apache/pom.xml tests/apache/pom39.xml
	@echo "fetching Apache Kafka's jars ..."
	mvn -q -B -f tests/apache/pom.xml dependency:copy-dependencies -DoutputDirectory=jars
	mvn -q -B -f tests/apache/pom39.xml dependency:copy-dependencies -DoutputDirectory=jars39
	@touch $@

$(SPARK)/.installed: tests/spark/requirements.txt pyproject.toml constraints.txt
	@echo "installing ottla and PySpark ..."
	$(PYTHON) -m venv $(SPARK)
	grep -v '^pyspark==' constraints.txt >$(SPARK)/constraints.txt
	PIP_CONSTRAINT=$(SPARK)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(SPARK)/bin/pip install --quiet -e . -r tests/spark/requirements.txt
	@touch $@

tests/spark/jars/.complete: tests/spark/pom.xml
	@echo "fetching Spark's Kafka connector ..."
	mvn -q -B -f tests/spark/pom.xml dependency:copy-dependencies -DoutputDirectory=jars
	@touch $@

clean:
	rm -rf $(VENV) $(SPARK) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
