"""The `kvorumutl` command. Commands, flags, outputs and exit codes are etcdutl's where it has them.

The exit codes are 128 for wrong arguments, 4 for a format that a result does not have, 2 for a
database in use, 1 for every other failure.
"""

from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.program import Program
from kvorum.tools.utl.commands import ROOT

PROGRAM = Program(ROOT, Invocation, "kvorum.tools.utl.failures:failure_of", repeats_misuse=True)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    main()
