"""The HTTPS service for the agents in workers; each pod authenticates by its own token. The plan decides what
follows.
"""
