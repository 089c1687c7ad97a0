"""Kafka's tools under their own names: thin fronts that take Kafka's options and print what Kafka's tools print.

One file per tool, with `main(argv)`, and beside them what several tools share. The options are read as Kafka reads them: by
`options` where Kafka uses jopt-simple, by `commands` where it uses argparse4j. Whatever is not looks lives elsewhere: in
`client`, in `cli/dump`, in `log`, where the verbs of `ottla` find it as well.
"""

# The release whose tools these are like; `--version` prints it, because scripts ask for it.
KAFKA_VERSION = "4.3.1"
