"""Errors keep what the command line needs, also when they come from another process."""

import pickle

from relmo.errors import DataError


def test_settings_survive_pickling():
    error = pickle.loads(pickle.dumps(DataError("no", settings=["encoding"])))
    assert (str(error), error.settings) == ("no", ("encoding",))
    assert DataError("no").settings == ()
