"""Parse the log of a training."""

import re


def weights(log: str) -> str:
    (found,) = re.findall(r"^weights (\w{16})$", log, flags=re.MULTILINE)
    return str(found)
