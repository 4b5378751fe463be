"""``python -m bridge migrate``: an edited copy of a PyCUDA program.

Names are followed through the program's own imports and assignments.  Where these do not settle
what a name is, the code stays, and a comment says what a person should decide.
"""
