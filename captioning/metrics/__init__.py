"""Scores of captions, one evaluator per file. Evaluators do not depend on captioners."""
