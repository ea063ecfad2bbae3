"""The interface of captioners, and their registry."""
