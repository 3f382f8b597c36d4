"""The network: start with `bilm.py`. No file is opened here."""
