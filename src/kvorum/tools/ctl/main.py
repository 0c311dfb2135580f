"""The `kvorumctl` command. Commands, flags, outputs and exit codes are etcdctl's where it has them.

Only the commands that need a module import it, so that `version` is as fast as Python's start.
"""

from kvorum.tools.cli.program import Program
from kvorum.tools.ctl.commands import ROOT
from kvorum.tools.ctl.invocation import CtlInvocation

PROGRAM = Program(ROOT, CtlInvocation, "kvorum.tools.ctl.failures:failure_of")
main, run, execute = PROGRAM.main, PROGRAM.run, PROGRAM.execute

if __name__ == "__main__":
    main()
