"""The small paged-KV engine that runs a model on this machine."""
