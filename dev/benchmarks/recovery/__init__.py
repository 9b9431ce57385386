"""Measure how long training stops after a fault and how many steps are repeated, for the operator and its peers."""
