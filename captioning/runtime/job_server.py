"""Tunes the server process of `job_runner`, which imports this module first. Not for others."""

from captioning.runtime.start import tune_process

tune_process()
