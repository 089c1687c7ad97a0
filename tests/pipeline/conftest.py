"""A real Spark for the tests of the pipeline: one per process, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Checkpoints of tests need not survive a power cut of the disk's cache, nor be checked twice.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], on loopback, without a web page; its tables in a directory that goes away."""
    from ottla.pipeline.session import session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    made = session("tests", master="local[2]", conf=SETTINGS | {"spark.sql.warehouse.dir": f"file:{warehouse}"})
    yield made
    made.stop()
