"""How long training stands still after a fault, and how much of it is done again: the operator beside its peers."""
