"""The level-triggered core: work queue, reconcile loop, write tracking and leader election. Knows nothing of
training.
"""
