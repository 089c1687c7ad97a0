"""`python -m ottla`: the command, also where its scripts are not on the path."""

from ottla.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
