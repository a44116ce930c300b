"""`python -m ludus` is `ludus`."""

import sys

from ludus.cli import main

if __name__ == "__main__":
    sys.exit(main())
