# ruff: noqa: INP001 - the image makes it a part of MXNet
"""What MXNet 1.9.1 looks for, and Python 3.12 and NumPy 2 no longer have.

MXNet gives these names of NumPy to its own module `mxnet.numpy`, and calls none of them in a training. `distutils` comes from setuptools.
"""

import numpy as np
import setuptools  # noqa: F401 - its import brings distutils

GONE = (
    "Inf NAN NINF NZERO NaN PINF PZERO alltrue cumproduct in1d mirr msort npv pmt ppmt product pv rate round_ row_stack sometrue"
    " trapz"
)

for name in GONE.split():
    if not hasattr(np, name):
        setattr(np, name, np.inf if name == "Inf" else None)
