"""Peak memory of a step on one rank: the step walked on tensors without memory."""
