"""One page that compares finished runs: scores, figures, captions, and what each token costs."""
