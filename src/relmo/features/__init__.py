"""Vectors of tokens, computed when they are asked for or kept in a store on disk."""
