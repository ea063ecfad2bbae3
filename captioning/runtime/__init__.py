"""Processes: start, stop, fail, end, print and show progress, one or several of them."""
