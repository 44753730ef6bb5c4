"""``python -m flexpipe.engines.emulated``: see `process`."""

import sys

from flexpipe.engines.emulated.process import main

sys.exit(main())
