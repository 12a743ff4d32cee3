"""``python -m castfit``: the command line where no script was put on the path."""

import sys

from castfit.cli import main

sys.exit(main())
