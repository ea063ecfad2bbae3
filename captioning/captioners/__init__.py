"""Defines the interface of captioners, and lists the captioners."""
