"""The one exception a user is meant to read.

Raise :class:`UserError` for bad input, with one line that says what is wrong and how to mend it.
The command line prints that line and exits with code 2, without a traceback. Anything else that
escapes is a bug of ours and keeps its traceback.
"""


class UserError(ValueError):
    """Bad input. ``str(error)`` is one clear line: what is wrong, and how to mend it."""
