"""``python -m castfit.cli``."""

import sys

from castfit.cli import main

sys.exit(main())
