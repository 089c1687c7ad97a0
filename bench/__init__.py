"""Ottla and Apache Kafka under the same loads, in one run. `python -m bench --help`."""

import sys
from pathlib import Path

# The servers are started by the same code that the tests use.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
