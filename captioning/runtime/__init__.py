"""Processes, one or several: start, signals, errors, exit codes, log lines and progress."""
