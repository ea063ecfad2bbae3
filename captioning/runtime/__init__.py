"""Runs programs in one or several processes: start, signals, errors, exit codes and log lines."""
