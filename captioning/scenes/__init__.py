"""A synthetic data set whose content is known: scenes, their images, captions and facts."""
