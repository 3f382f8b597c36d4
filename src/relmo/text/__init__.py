"""Text to numbers: tokens, vocabularies, character ids and batches. No `torch.nn` here."""
