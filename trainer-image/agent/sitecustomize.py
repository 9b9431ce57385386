"""Run by Python before each program below the agent, since the agent's folder is the last of PYTHONPATH.

It registers the handler for stacks, and then runs the image's own `sitecustomize`, which it hides.
"""

import importlib.machinery
import importlib.util
import sys


def _run_hidden() -> None:
    """Run the module of this name that Python would have found without this file."""
    # As it is in PYTHONPATH: pathlib would take its time to import.
    own = __file__.rpartition("/")[0]
    others = [entry for entry in sys.path if entry != own]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is None or found.loader is None:
        return
    module = importlib.util.module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


try:
    import trainyard_stacks

    trainyard_stacks.register()
except Exception as error:  # noqa: BLE001 - no program may fail because of this
    sys.stderr.write(f"trainyard-agent: no stacks on request: {error}\n")
_run_hidden()
