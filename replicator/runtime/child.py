"""`python -m replicator.runtime.child MODULE ARGUMENT…`: a process that another one starts and tells to stop.

Until its module takes over, SIGTERM ends it with status 0: a service manager may send the signal to all processes of a service at once.
"""

import sys
from importlib import import_module

from replicator.model.processes.ending import end_at_once_on_signals

if __name__ == "__main__":
    end_at_once_on_signals()
    sys.exit(import_module(sys.argv[1]).main(sys.argv[2:]))
