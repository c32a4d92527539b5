#!/bin/sh
# The Python of a local session's tasks. Spark puts PySpark as archives in front of everything in PYTHONPATH, and Python compiles what is in
# an archive anew whenever it starts: 2.0 s of CPU instead of 0.8, of which a source has ten seconds to come up. The same
# modules are in site-packages, compiled: sessions.py takes this script only where they are.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
    case $place in
    "$SPARK_HOME"/python/lib/*.zip | "$SPARK_HOME"/jars/*.jar) ;;
    *) kept=${kept:+$kept:}$place ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec "$PGPS_SPARK_PYTHON" "$@"
