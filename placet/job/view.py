"""What those who show a job may ask of it: the terminal, the record, the plan."""

from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from placet.job.setup import Settings
from placet.placement.mesh import Mesh
from placet.program.program import Program
from placet.run.planned_training import PlannedTraining
from placet.run.training import Training


class JobView(Protocol):
    """A job, as far as it is shown; `placet.job.job.Job` is one."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def rank(self) -> int:
        """This process's rank."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many ranks train together."""
        ...

    @property
    def mesh(self) -> Mesh:
        """Where its tensors live."""
        ...

    @property
    def program(self) -> Program:
        """One training step as data."""
        ...

    @property
    def settings(self) -> Settings:
        """What it was asked for."""
        ...

    @property
    def model(self) -> nn.Module:
        """The module that it trains."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """What updates the parameters."""
        ...

    @property
    def training(self) -> Training | PlannedTraining:
        """The running form of its program."""
        ...
