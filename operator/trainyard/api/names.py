"""The forms of names in Kubernetes: of objects, and of labels and annotations."""

from typing import Annotated

from pydantic import StringConstraints

DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
QUALIFIED = rf"({DOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
"""The key of a label or an annotation."""
MAX_QUALIFIED = 317
"""Characters of such a key: a domain of 253, a slash and a name of 63."""
ObjectName = Annotated[str, StringConstraints(max_length=253, pattern=f"^{DOMAIN}$")]
"""The name of an object in the cluster."""
