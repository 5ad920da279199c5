"""From a solver's choices to what the program is told: signatures, homes, boxings."""

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.planner.problem import Assignment, Problem, wanted
from placet.program.division import Division

Steps = tuple[tuple[Layout, Layout], ...]


def decide(problem: Problem, mesh: Mesh, assignment: Assignment) -> Division:
    """The division that an assignment stands for.

    The boxings of each tensor are those that the solver has priced.
    """
    signatures, homes = {}, {}
    for node, choice in zip(problem.nodes, assignment.choices, strict=True):
        if node.signatures:
            signatures[node.name] = node.signatures[choice]
        elif node.outputs and node.is_state:
            stored = node.outputs[0]
            assert stored is not None
            layouts = problem.tensors[stored].domain.layouts
            homes[node.name] = layouts[int(node.output_layouts[choice, 0])]
    boxings: dict[str, Steps] = {}
    again: dict[str, Steps] = {}
    for index, tensor in enumerate(problem.tensors):
        trees = wanted(problem, index, assignment)
        for found, (made, read) in zip((boxings, again), trees, strict=False):
            steps = tensor.domain.tree(made, read)
            if steps:
                layouts = tensor.domain.layouts
                found[tensor.name] = tuple((layouts[a], layouts[b]) for a, b in steps)
    return Division(mesh, signatures, homes, boxings, again)
