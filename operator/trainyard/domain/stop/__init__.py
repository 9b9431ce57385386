"""Decide how attempts, pods and jobs end. Pure."""
