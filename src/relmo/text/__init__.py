"""Text to numbers: tokens, vocabularies, character ids and batches. NumPy only: no torch here."""
