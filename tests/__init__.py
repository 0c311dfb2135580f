"""By itself pytest runs tests on the sources, so that no edit has to be compiled first.

`make test` runs them on the compiled core, which users run, by KVORUM_COMPILED=1; only the tests
marked `sources`, which patch compiled modules, it runs on the sources.
"""

import os

os.environ.setdefault("KVORUM_COMPILED", "0")
