"""Tables as text: of calls with their errors, and of programs with what is said of them."""

import re
import textwrap


def rows_of(table):
    """Return the calls of a table, each with its kind of error and the phrase below it."""
    return re.findall(r"^(\w.*)\n    (\w+): (.+)$", table, re.MULTILINE)


def cases_of(table):
    """Return by name the texts of a table, each below a line of its name and what is said of it."""
    found = re.findall(r"^(\S.*?): (.*)\n((?: .*\n)+)", table, re.MULTILINE)
    return {name: (textwrap.dedent(text), said) for name, said, text in found}


def error_of(call):
    """Return the type and the text of the error that a call raises; it and its frames are gone."""
    try:
        call()
    except (Exception, SystemExit) as error:
        return type(error), str(error)
    return None, "no error"
