"""What lies in the files of a data directory, made readable: for `kafka-dump-log.sh`, `ottla log` and the metadata shell."""
