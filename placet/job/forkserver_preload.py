"""Imported once by the fork server, so that workers start with torch in memory."""

import torch

import placet.job.train
import placet.job.worker  # noqa: F401

# The first optimizer of a process imports torch's compiler: half a second per worker.
torch.optim.SGD([torch.zeros(1, requires_grad=True)])
