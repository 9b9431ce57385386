"""Measures the operator beside its peers, on the local cluster's scale profile. No program of the operator imports this."""
