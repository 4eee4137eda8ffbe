"""A fleet of pretended engines under the controllers of production, on a trace of requests.

Events are discrete, time is ms since the start of the trace, and the same settings and seed give
the same figures again. Start reading at `fleet`.
"""
