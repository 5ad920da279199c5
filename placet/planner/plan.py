"""A plan as a value: printed, kept in a file, compared, questioned, edited.

plan = placet.plan(model, batch, loss, cluster=cluster)
print(plan)                                       what is where, which bytes move
plan.save("plan.json"); Plan.load("plan.json")    small, the same again
plan.diff(other)                                  what another plan does otherwise
plan.explain(graph, "h.0.mlp.up.weight")          alternatives and their cost
plan.with_home(graph, "h.0.mlp.up.weight", [S(0)])  edited by hand, priced again
plan.routed(graph)                                its file was edited: boxings anew
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placet.errors import PlanError
from placet.placement.layout import Layout
from placet.placement.placement import Placement
from placet.planner.explain import explain
from placet.planner.plan_check import check_division, check_placements
from placet.planner.plan_data import PlanData
from placet.planner.plan_diff import diff
from placet.planner.plan_edit import edited, routed, with_home, with_signature
from placet.planner.plan_json import to_json
from placet.planner.plan_read import data_of
from placet.planner.plan_text import plan_text
from placet.program.graph import Graph
from placet.program.signature import Signature


@dataclass(frozen=True)
class Plan(PlanData):
    """How a model's training step is divided over the ranks of a mesh.

    Made by `placet.plan` or `Plan.load`; see `PlanData` for what it holds.
    """

    def __str__(self) -> str:
        return plan_text(self)

    def save(self, path: Path | str) -> None:
        """Write the plan to a file that `load` reads.

        Raises:
            OSError: it cannot be written.
        """
        Path(path).write_text(to_json(self))

    @staticmethod
    def load(path: Path | str) -> "Plan":
        """Read a plan.

        Raises:
            PlanError: no such file, or no plan in it.
        """
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise PlanError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PlanError(f"{path} is no text, so no plan ({error})") from error
        try:
            return Plan.from_json(text)
        except PlanError as error:
            raise PlanError(f"{path}: {error.args[0]}") from error

    def to_json(self) -> str:
        """The plan as text."""
        return to_json(self)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """The plan that `to_json` has written.

        Raises:
            PlanError: no plan, one of another version, or one that was edited to what
                makes no sense.
        """
        return Plan(**data_of(text))

    def diff(self, other: "Plan") -> str:
        """What another plan does otherwise, as text; "" if nothing."""
        return diff(self, other)

    def explain(self, graph: Graph, name: str) -> str:
        """The alternatives for an operator, tensor or parameter, and what they cost.

        Args:
            graph: normalised, as `placet.planner.planning.graph_for` gives it.

        Raises:
            PlanError: the graph is not the plan's.
            ValueError: nothing has that name.
        """
        check_division(graph, self.division)
        return explain(self, graph, name)

    def with_signature(
        self, graph: Graph, name: str, signatures: Sequence[Signature]
    ) -> "Plan":
        """The plan with other signatures of an operator, one per axis; priced again.

        Raises:
            PlanError: the graph is not the plan's.
            ValueError: no such operator, or signatures that it does not have.
        """
        check_division(graph, self.division)
        return edited(self, graph, with_signature(self, graph, name, signatures))

    def with_home(
        self, graph: Graph, name: str, home: Layout | Sequence[Placement]
    ) -> "Plan":
        """The plan with a parameter or buffer stored elsewhere; priced again.

        Raises:
            PlanError: the graph is not the plan's.
            ValueError: no such state, or a layout that does not fit it.
        """
        check_division(graph, self.division)
        return edited(self, graph, with_home(self, graph, name, home))

    def routed(self, graph: Graph) -> "Plan":
        """The plan with the cheapest boxings for its homes and signatures; priced.

        For a plan whose file was edited: boxings that no longer fit are found anew.

        Raises:
            PlanError: homes or signatures that the graph does not have.
        """
        check_placements(graph, self.division)
        return edited(self, graph, routed(self, graph))
