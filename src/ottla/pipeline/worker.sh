#!/bin/sh
# Called by Spark in the place of Python; see interpreter.py. Spark names the archives twice, and an entry of the path that is
# left empty would stand for the current directory.
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed 's#[^:]*/python/lib/pyspark\.zip##g; s#[^:]*/py4j-[^:/]*-src\.zip##g; s#::*#:#g; s#^:##; s#:$##')
export PYTHONPATH
case "$1 $2" in
"-m pyspark.daemon") shift 2 && set -- -m ottla.pipeline.daemon "$@" ;;
"-m pyspark.sql."*) shift && set -- -m ottla.pipeline.planning "$@" ;;
esac
exec "$OTTLA_WORKER_PYTHON" "$@"
