"""`python -m ludus` is `ludus`: in neither does the current folder come before the libraries."""

import os
import sys

from ludus.cli.main import main

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]
    sys.exit(main())
