"""What can go wrong through no fault of relmo: every error a user may meet and fix.

Each message says what was found, what was expected and what to do. The command line shows the
message alone and exits with 2; a traceback is kept for our own mistakes.
"""


class RelmoError(Exception):
    """Base of every error that relmo raises on purpose."""


class ConfigError(RelmoError):
    """A setting, option or argument that does not make sense."""


class DataError(RelmoError):
    """Text or other input that cannot be read, or output that cannot be written."""


class FormatError(RelmoError):
    """A model file that is missing, damaged, hostile or of a kind that relmo does not know."""


class CheckpointError(RelmoError):
    """A checkpoint that cannot be written or continued from."""


class TrainingError(RelmoError):
    """Training that cannot go on: the loss diverged, or another process of the job died."""


class RelmoWarning(UserWarning):
    """Something odd that relmo can live with, said once."""
