"""The command line: one file per command."""

import os

if os.environ.get("NO_COLOR"):  # tyro reads its setting when it is imported
    os.environ.setdefault("PYTHON_TYRO_ANSI_CODES", "False")
