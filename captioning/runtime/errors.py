"""The one exception that a user's mistake ends in."""


class UserError(Exception):
    """What was wrong, where, and what to do, in one line that is printed without a traceback."""
