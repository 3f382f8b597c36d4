"""The errors that a user may meet and fix.

Each message says what was found, what was expected and what to do. The command line shows the
message alone and exits with 2; a traceback means a bug in relmo.

Example:
    >>> import relmo
    >>> try:
    ...     relmo.load("no-such-model")
    ... except relmo.errors.FormatError as error:
    ...     print(str(error)[:34])
    There is no model 'no-such-model':
"""

from collections.abc import Sequence


class RelmoError(Exception):
    """Base of every error that relmo raises on purpose.

    Attributes:
        settings: names of the parameters that the message is about. The message itself does not
            name command-line options; the command line adds those with these names.
    """

    def __init__(self, *arguments: object, settings: Sequence[str] = ()) -> None:
        super().__init__(*arguments)
        self.settings = tuple(settings)


class ConfigError(RelmoError):
    """A setting, option or argument that does not make sense."""


class DataError(RelmoError):
    """Text or other input that cannot be read, or output that cannot be written."""


class FormatError(RelmoError):
    """A file of a model, an index or results: missing, damaged, hostile or of an unknown format."""


class CheckpointError(RelmoError):
    """A checkpoint that cannot be written or resumed from."""


class TrainingError(RelmoError):
    """Training that cannot continue: the loss diverged, or another process of the job died."""


class RelmoWarning(UserWarning):
    """Something unusual that does not stop relmo."""
