"""Whether Spark can keep the result of a stream in the mode that a sink asks for.

Spark judges that when a query starts, after others of the same pipeline have started, and in words of its own API. It is
asked here before anything runs, and what it says is followed by what to write in the file. Its judge is not public: a server
of Spark Connect does not lend it, and there the query is refused when it starts, as ever.
"""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from ottla.pipeline.files.failures import first_lines
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import Sink

SWITCH = "spark.sql.streaming.unsupportedOperationCheck"
# What Spark's message has in it, and what helps.
ADVICE = {
    "aggregations without watermark": (
        "write 'mode: update' at the sink to get a row whenever it changes; or group by window(TIME, '1 minute') of a column "
        "that has a 'watermark', to get each window once"
    ),
    "session window": "write 'mode: append' at the sink: each session comes once, when it is over",
    "no streaming aggregations": "write 'mode: append' at the sink: only groups can be written anew as a whole",
    "possible 'correctness' issue": (
        "two steps with state (groups, joins, deduplicate) stand one after the other: write 'mode: append' at the sink, or "
        "write the result of the first to a topic and read it from there"
    ),
    "dropDuplicatesWithinWatermark": (
        "give the source a 'watermark' and keep its column in this step; or write 'within_watermark: false', and everything "
        "that was seen is remembered for ever"
    ),
    "Sorting is not supported": "leave ORDER BY out: whoever reads the result sorts it",
    "Limits are not supported": "write 'mode: append' at the sink, or leave LIMIT out",
    "join between two streaming": (
        "give both sources a 'watermark', and say in ON how far apart their times may be: b.at BETWEEN a.at AND a.at + "
        "INTERVAL 1 HOUR"
    ),
    "NON_TIME_WINDOW_NOT_SUPPORTED": "for the newest of each key write max_by(COLUMN, TIME) ... GROUP BY KEY",
}


def judge(frame: DataFrame, sink: Sink) -> None:
    """Raises WrongPipeline if Spark would refuse the query."""
    if is_remote() or frame.sparkSession.conf.get(SWITCH) == "false":
        return
    jvm: Any = frame.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as error:
        told = first_lines(error)
        raise WrongPipeline([f"{sink.where}: sink {sink.name!r} of {sink.of!r}: {told}{advice(told)}"])


def advice(told: str) -> str:
    return next((f" -> {text}" for sign, text in ADVICE.items() if sign in told), "")
