"""The one place where a SparkSession is made, with the settings that topics need.

Spark starts its Python workers, and looks for `format("ottla")`, with PYSPARK_PYTHON or else with whatever `python3` is: so
the variable is set to the interpreter that runs this. It binds to the first network card it finds: a local one is held on
loopback. It takes Ctrl-C for itself, seconds before it can do without being interrupted: who has a handler keeps it. What a
caller sets himself is never overridden.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from ottla.pipeline import interpreter, needs, nursery, workers

LOCAL = "local[*]"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# Each of these can be changed while a session runs, and so also on a server that is far away.
SQL_SETTINGS = {
    # With a limit, the JVM measures the whole batch after each row: 17 s instead of 3 s for a million rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # State beyond the heap; and what transformWithState needs.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Offsets, partitions and times of a batch read are looked up instead of filtered.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Windows begin at the same moment wherever they are computed.
    "spark.sql.session.timeZone": "UTC",
}
# These belong to the driver's process, and to nobody else's.
PROCESS_SETTINGS = {
    "spark.python.daemon.module": "ottla.pipeline.daemon",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {
    # Spark writes to its workers in small pieces. Over TCP, even on loopback, every task waits 40 ms for one of them.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
SHUFFLE, SHUFFLE_DEFAULT = "spark.sql.shuffle.partitions", "200"
# A server of Spark Connect that does not answer is asked again for half a minute, as a broker is; PySpark's own patience would
# be ten. One that was started anew knows nothing of this session in any case.
TRIES, PAUSE_MS_MAX = 10, 5_000


def session(
    name: str = "ottla",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_level: str = "fatal",
) -> SparkSession:
    """A session on this machine (`local[*]`), on a cluster (`master="spark://..."`) or on a server of Spark Connect
    (`remote="sc://..."`). One that runs in this process already is taken as it is."""
    given = dict(conf or {})
    needs.check(remote=remote is not None)
    # It writes every exception that PySpark raises to standard error, as if nobody caught any.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if remote is not None:
        return _connected(remote, given)
    is_here = (master or LOCAL).startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", interpreter.for_workers() if is_here else sys.executable)
    if os.environ["PYSPARK_PYTHON"] == str(interpreter.SCRIPT):
        nursery.open_for_workers()
    settings = settings_of(master or LOCAL, given, log_level)
    with _handler_kept():
        SparkContext.getOrCreate(SparkConf().setAppName(name).setMaster(master or LOCAL).setAll(list(settings.items())))
    workers.check()  # one that was there already may run another Python
    builder = SparkSession.builder.appName(name).master(master or LOCAL)
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


def settings_of(master: str, given: Mapping[str, str], log_level: str = "fatal") -> dict[str, str]:
    """Everything that is set for this master; what the caller says comes last."""
    quiet = f"-Dlog4j2.configurationFile=file:{LOG_SETTINGS} -Dottla.log={log_level}"
    settings = SQL_SETTINGS | PROCESS_SETTINGS | {"spark.driver.extraJavaOptions": quiet}
    if master.startswith("local"):
        # A shuffle over 200 partitions, Spark's default, is for clusters: on two cores it is 200 small tasks in turn.
        settings |= LOCAL_SETTINGS | {SHUFFLE: str(max(2, os.cpu_count() or 2))}
    return settings | dict(given)


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Whoever has a handler of his own for Ctrl-C has it afterwards as well; Python's own gives way to Spark's."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def adopt(spark: SparkSession) -> None:
    """To be called first in a thread that starts queries: Spark knows the active session by thread, and looks there for
    formats that come from Python. Making a frame, even of nothing, is what sets it."""
    spark.createDataFrame([], "nothing INT")


def _connected(address: str, given: Mapping[str, str]) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # needs gRPC

    made: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    made.client.set_retry_policies([DefaultPolicy(max_retries=TRIES, max_backoff=PAUSE_MS_MAX)])
    for key, value in {**SQL_SETTINGS, **shuffle_of(made), **given}.items():
        made.conf.set(key, value)
    return made


def shuffle_of(spark: SparkSession) -> dict[str, str]:
    """On a server of Spark Connect that computes by itself, as few partitions as on this machine, for its own processors. What
    somebody has set there stays, and so does a cluster. (A checkpoint with state keeps the number that it began with.)"""
    master = spark.conf.get("spark.master", "") or ""
    if not master.startswith("local") or spark.conf.get(SHUFFLE) != SHUFFLE_DEFAULT:
        return {}
    # So many pieces it makes of what nobody has divided: the only word that Connect has for its processors.
    [last] = spark.range(1000).select(spark_partition_id()).tail(1)
    return {SHUFFLE: str(max(2, last[0] + 1))}
