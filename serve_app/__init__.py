"""Serving: ingress, router, replica, executors, the local engine and the command line."""
