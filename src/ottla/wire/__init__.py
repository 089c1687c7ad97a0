"""Bytes to objects and back: no sockets, no files, no clock."""
