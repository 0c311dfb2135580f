"""The `kvorumctl` command. Commands, flags, outputs and exit codes are etcdctl's where it has them.

What only some commands need is imported by those: `version` is there as soon as Python is.
"""

from kvorum.cli.program import Program
from kvorum.ctl.commands import ROOT
from kvorum.ctl.invocation import Invocation

PROGRAM = Program(ROOT, Invocation, "kvorum.ctl.failures:failure_of")
main, run, execute = PROGRAM.main, PROGRAM.run, PROGRAM.execute

if __name__ == "__main__":
    main()
