"""Scores captions, with one evaluator per file. Evaluators do not depend on captioners."""
