"""Spark looks for modules of such a name and registers what they call `DefaultSource`: that is all this one is for."""
