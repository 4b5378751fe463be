"""Tables of errors: calls, and below each the kind of its error and a phrase of its text."""

import re


def rows_of(table):
    """Return the calls of a table, each with its kind of error and the phrase below it."""
    return re.findall(r"^(\w.*)\n    (\w+): (.+)$", table, re.MULTILINE)


def error_of(call):
    """Return the type and the text of the error that a call raises; it and its frames are gone."""
    try:
        call()
    except (Exception, SystemExit) as error:
        return type(error), str(error)
    return None, "no error"
