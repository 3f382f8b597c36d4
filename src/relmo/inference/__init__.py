"""A model at work: text in, vectors and probabilities out."""
