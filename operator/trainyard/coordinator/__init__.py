"""The service that the agents in workers talk to: HTTPS, each pod by its own token. It hears; what follows is decided by the plan."""
