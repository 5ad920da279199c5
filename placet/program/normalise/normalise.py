"""All passes: from a captured graph to one that can be divided well."""

from placet.program.graph import Graph
from placet.program.normalise.batch_norm import split_batch_norm
from placet.program.normalise.clean import clean
from placet.program.normalise.cross_entropy import split_cross_entropy
from placet.program.normalise.unflatten import unflatten


def normalise(graph: Graph, num_ranks: int) -> Graph:
    """The same step in operators that can be divided.

    Args:
        graph: as captured.
        num_ranks: with one rank nothing is divided, so losses and norms keep their
            faster whole operators.
    """
    graph = clean(graph)
    if num_ranks > 1:
        graph = split_batch_norm(split_cross_entropy(graph))
    return clean(unflatten(graph))
