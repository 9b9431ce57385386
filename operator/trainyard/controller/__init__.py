"""Where it all meets: kopf, the caches, the pure plan and the API server. The only package that knows every other."""
