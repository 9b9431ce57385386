"""How long it takes until a group trains in another size, and what that costs it: the operator beside Kubeflow's."""
