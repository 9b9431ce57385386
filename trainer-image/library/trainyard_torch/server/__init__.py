"""A parameter server on torch.distributed.rpc: some processes hold the parameters and the optimizer, the others train.

Import `session` from its module: what is here needs no torch.
"""

from trainyard_torch.server.roles import Roles, may_apply, shares

__all__ = [
    "Roles",
    "may_apply",
    "shares",
]
