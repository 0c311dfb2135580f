"""Tests run on the sources, which they may patch; KVORUM_COMPILED=1 runs them on the compiled core.

`make test` does both: everything on the sources, then the tests marked `compiled`.
"""

import os

os.environ.setdefault("KVORUM_COMPILED", "0")
