"""Imported once by the fork server, so that workers start with torch in memory.

Nothing else imports this module: importing it changes the process. The server dies
with the launcher, and each worker with the server. Ctrl-C is ignored until a worker
has its own handler.
"""

import signal

import torch.distributed
import torch.utils.data  # noqa: F401

import placet.job.train
import placet.job.worker  # noqa: F401
from placet.job.process import die_with_parent

die_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)
