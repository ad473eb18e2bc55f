"""``python -m logforensics``."""

import sys

from logforensics.cli import main

if __name__ == "__main__":
    sys.exit(main())
