"""Connect kopf, the caches, the pure plan and the API server. The only package that may import every other one."""
