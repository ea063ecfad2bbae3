"""Makes a synthetic data set with known content: scenes, their images, captions and facts."""
