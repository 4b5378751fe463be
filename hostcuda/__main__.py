"""What `python -m hostcuda` runs in the top folder of the repository, if it is not installed."""

import sys

sys.exit(
    "hostcuda is not installed for this Python: run `python -m pip install ./hostcuda`, or use "
    "`.venv/cuda12/bin/python -m hostcuda` after `make demo`"
)
