#!/bin/sh
# Called by Spark in the place of Python; see interpreter.py.
exec "$OTTLA_WORKER_PYTHON" -I -S "${0%/*}/start_worker.py" "$@"
