"""What holds for all tests: random ones draw the same examples in every run, unless XCE_RANDOM is set.

A test that fails once in a hundred runs helps nobody who did not write it. Whoever looks for new faults sets the
variable, and turns what is found into an example.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", deadline=None, print_blob=True)
settings.load_profile("new" if os.environ.get("XCE_RANDOM") else "same")

# A shell starts what runs in its background with SIGINT ignored, and every program of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
