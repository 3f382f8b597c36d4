"""Vectors of tokens: live, static or stored."""
