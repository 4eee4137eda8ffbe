"""Checks of a machine, a bus and a running fleet: what was observed -> findings with their fixes.

Files named after a subject are pure (`gpu`, `versions`, `variables`, `topics`, `fleet`, `limits`);
`observe` and `gpu_probe` look at the world, each within a bound; `run` runs checks side by side.
"""
