"""A parameter server on torch.distributed.rpc: some processes hold the parameters and the optimizer, the others train.

`session` is imported by its own name: what is here needs no torch.
"""

from trainyard_torch.server.roles import Roles, may_apply, shares

__all__ = [
    "Roles",
    "may_apply",
    "shares",
]
