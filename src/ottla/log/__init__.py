"""One partition's log on a Disk, in Apache Kafka's own files."""
