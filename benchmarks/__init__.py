"""Measures this project beside other implementations, which take turns in one run."""
