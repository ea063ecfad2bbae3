"""Runs variants of one configuration: mixture weights and the published ablations."""
