"""Compares finished runs in one HTML page: scores, figures, captions, and loss of each token."""
