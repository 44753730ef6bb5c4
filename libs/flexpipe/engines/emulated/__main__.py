"""``python -m flexpipe.engines.emulated``: see `process`."""

import gc
import sys

# What is imported stays: collecting in it takes time now, and memory of every rank that is forked later.
gc.disable()

from flexpipe.engines.emulated.process import main  # noqa: E402

gc.freeze()
gc.enable()
sys.exit(main())
