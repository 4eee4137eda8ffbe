"""Deciding code. Pure: no I/O, clock, environment, thread or socket; `now` is an argument."""
