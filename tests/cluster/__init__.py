"""Three manager hosts: real agents, a real etcd, real networks between them, and what becomes of faults."""
