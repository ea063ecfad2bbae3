"""Imported first, and only, by the process that forks jobs: its start, as of a program."""

from captioning.runtime.start import tune_process

tune_process()
