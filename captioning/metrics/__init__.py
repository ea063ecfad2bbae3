"""Scores of captions, one evaluator a file: each reads captions, none knows what wrote them."""
