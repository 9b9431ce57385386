"""`python -m tests.support.prefetch`: download what `make test` builds late, so that a missing module fails it
early.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dev.localcluster import go_toolchain, tools
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths, from_environment
from dev.localcluster.say import complain, say
from tests.support import third_party_crds

LONG_TESTS_ONLY: Final = {*tools.RELEASE, *tools.POLICIES, *tools.GANGS, "adapter"}
"""Programs that only `make test-long` runs."""
MODULES: Final = (
    *(module for module in tools.MODULE_LIST if not LONG_TESTS_ONLY.issuperset(module.packages)),
    third_party_crds.MODULE,
    third_party_crds.GANGS,
)
DOWNLOADS_AT_ONCE: Final = 4


def errors(modules: tuple[tools.Module, ...], paths: Paths) -> list[str]:
    """Download the Go modules of all `modules`; return one sentence for each that cannot be had."""
    go_toolchain.find(paths)  # once, before the threads ask for it

    def error(module: tools.Module) -> str:
        try:
            tools.fetch_sources(module, paths)
        except LocalClusterError as failure:
            return str(failure)
        return ""

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as threads:
        return [sentence for sentence in threads.map(error, modules) if sentence]


def main() -> int:
    """Return the exit code."""
    say("downloading the Go modules that the tests need (about 3 min the first time)")
    try:
        failures = errors(MODULES, from_environment())
    except LocalClusterError as failure:
        failures = [str(failure)]
    for sentence in failures:
        complain(sentence)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
