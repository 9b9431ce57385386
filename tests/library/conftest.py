"""These run where torch is: `make library-test` runs them in the trainer image."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]
