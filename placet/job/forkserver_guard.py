"""Imported first by the fork server: it ends with its launcher, and ignores Ctrl-C.

Nothing else imports this module: importing it changes the process. Workers inherit that
Ctrl-C is ignored, until each installs its own handler (placet.job.interrupt).
"""

import signal

from placet.job.process import die_with_parent

die_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)
