"""What is asked of any captioner: built, loaded, many captions, one word by word, likelihood."""
