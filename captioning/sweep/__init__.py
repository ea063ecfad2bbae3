"""Trains and compares variants of one configuration: mixtures, ablations, other objectives."""
