"""Shows the effect of SMILE in minutes, on a small data set of drawn scenes."""
