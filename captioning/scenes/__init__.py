"""A drawn world whose truth is known: scenes, their pictures, their annotators, their facts."""
