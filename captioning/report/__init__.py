"""A page that compares finished runs: scores, figures, captions, and the loss of each token."""
