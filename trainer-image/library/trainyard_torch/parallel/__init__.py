"""A model spread over processes: by samples, parameters, matrices, layers and sequences, and any of them together.

This package imports nothing: what pipelines need takes seconds to import, and few programs have any.
"""
