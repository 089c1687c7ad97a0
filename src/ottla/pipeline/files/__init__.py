"""Pipelines as files: sources, steps and sinks, written down once and run by Spark.

A file is read into nodes that know their line (`nodes`), the nodes into a `Spec` (`spec`), a `Spec` into frames and queries
of Spark (`sources`, `formats`, `steps`, `sinks`, `building`); `running` keeps the queries alive, `progress`, `metrics` and
`status` tell about them, and `checking` holds a file against the live topics. The Python API says the same words and goes
the same way. `declarative` writes a file down for Spark's own pipelines, whose definitions call `exported`.
"""
