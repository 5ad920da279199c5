"""placet from scratch: the whole idea in one file, one process and nothing but torch.

Ranks are entries of a list here, so a transfer is a copy from one entry to another that
we count. Run it: it asserts every claim below. The numbers equal one device's, and the
bytes equal a formula that was worked out before anything ran.
"""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor


# ---- 1. Placements ------------------------------------------------------------------
# A tensor that several ranks hold together is one thing. What differs is how they hold
# it, and there are three ways:
#
#   S(0)   split: each rank has a slice of dim 0 (S(1): of dim 1, and so on)
#   B      broadcast: each rank has all of it
#   P      partial: each rank has a term, and the tensor is the sum of the terms
#
# P looks strange and is the key to everything: it is what a sum over split rows gives
# before anybody has moved a byte. A gradient is such a sum.
@dataclass(frozen=True)
class Placement:
    kind: str
    dim: int = 0

    def __repr__(self) -> str:
        return f"S({self.dim})" if self.kind == "S" else self.kind


B, P = Placement("B"), Placement("P")


def S(dim: int) -> Placement:
    return Placement("S", dim)


@dataclass(frozen=True)
class Placed:
    parts: list[Tensor]  # by rank; the placement says what they mean
    placement: Placement


# Slices follow torch.chunk's rule: n indices over p ranks are cut every ceil(n / p), so
# the last slices may be short or empty. Nobody pads, so nobody pays for padding.
def cut(tensor: Tensor, dim: int, num_ranks: int) -> list[Tensor]:
    size = tensor.shape[dim]
    step = -(-size // num_ranks)
    starts = [min(i * step, size) for i in range(num_ranks)]
    return [tensor.narrow(dim, i, min(step, size - i)) for i in starts]


def place(tensor: Tensor, placement: Placement, num_ranks: int) -> Placed:
    """Put a tensor that one device has onto the ranks (to begin with, uncounted)."""
    if placement.kind == "S":
        return Placed(cut(tensor, placement.dim, num_ranks), placement)
    others = tensor if placement == B else torch.zeros_like(tensor)
    return Placed([tensor] + [others] * (num_ranks - 1), placement)


def value(placed: Placed) -> Tensor:
    """What a placed tensor stands for, whatever its placement."""
    if placed.placement.kind == "S":
        return torch.cat(placed.parts, placed.placement.dim)
    return placed.parts[0] if placed.placement == B else sum(placed.parts)


# ---- 2. Boxings ---------------------------------------------------------------------
# A change of placement is a boxing. It is the only thing that moves bytes. `Traffic`
# stands for the network: what goes from a rank to itself is free, the rest is counted.
@dataclass
class Traffic:
    received_bytes: int = 0

    def send(self, tensor: Tensor, src: int, dst: int) -> Tensor:
        if src != dst:
            self.received_bytes += tensor.numel() * tensor.element_size()
        return tensor


def box(x: Placed, dst: Placement, net: Traffic) -> Placed:
    """The same value in another placement, by the fewest bytes."""
    src, p = x.placement, len(x.parts)
    if src == dst:
        return x
    if src == B:  # every rank has all it needs: nothing moves
        return place(x.parts[0], dst, p)
    if dst == P:  # a slice becomes a term: zeros around it, nothing moves
        terms = [[q * (i == r) for i, q in enumerate(x.parts)] for r in range(p)]
        return Placed([torch.cat(term, src.dim) for term in terms], P)
    if src == P and dst == B:  # all-reduce: sum slice by slice, then collect the sums
        flat = Placed([part.reshape(-1) for part in x.parts], P)
        whole = box(box(flat, S(0), net), B, net)
        return Placed([part.view(x.parts[0].shape) for part in whole.parts], B)
    if dst == B:  # all-gather: each rank gets the slices it lacks
        given = [[part] * p for part in x.parts]
    else:  # reduce-scatter from P, all-to-all from S: each rank gets its slice's pieces
        given = [cut(part, dst.dim, p) for part in x.parts]
    got = [[net.send(given[s][r], s, r) for s in range(p)] for r in range(p)]
    return Placed([sum(g) if src == P else torch.cat(g, src.dim) for g in got], dst)


# What it costs is known before it runs, from shapes alone. T is the tensor's bytes, p
# the number of ranks; received bytes are summed over the ranks.
#
#   src \ dst   S(j)                  B                       P
#   S(i)        all-to-all T(p-1)/p   all-gather T(p-1)       0
#   B           0                     0                       0
#   P           reduce-scatter T(p-1) all-reduce 2T(p-1)      0
def price(src: Placement, dst: Placement, shape: torch.Size, num_ranks: int) -> int:
    num_bytes = shape.numel() * 8  # float64 everywhere in this file
    if src in (B, dst) or dst == P:
        return 0
    if src.kind == dst.kind == "S":  # all of it but what stays where it is
        slices = enumerate(cut(torch.empty(shape), src.dim, num_ranks))
        kept = [cut(part, dst.dim, num_ranks)[r].numel() for r, part in slices]
        return num_bytes - 8 * sum(kept)
    return num_bytes * (num_ranks - 1) * (2 if (src, dst) == (P, B) else 1)


def check_the_table() -> None:
    tensor = torch.randn(7, 5, dtype=torch.float64)  # uneven over 2, 3 and 4 ranks
    for p, src, dst in product((1, 2, 3, 4), (S(0), S(1), B, P), (S(0), S(1), B, P)):
        net, placed = Traffic(), place(tensor, src, p)
        if src == P:  # terms that matter, all of them
            placed = Placed([tensor * (2 * r + 1) / p**2 for r in range(p)], P)
        moved = box(placed, dst, net)
        torch.testing.assert_close(value(moved), tensor)
        assert net.received_bytes == price(src, dst, tensor.shape, p)


# ---- 3. Signatures ------------------------------------------------------------------
# Most operations need no bytes at all if their operands lie right. A signature says
# when: rows of x times all of w are rows of y; all of x times columns of w are columns;
# and columns times rows are *terms* of y. No signature, no computation: relu of a term
# is not a term of the relu, so P has to be boxed before it.
def signature(op: str, inputs: list[Placement]) -> Placement:
    if op == "matmul":
        known = {(S(0), B): S(0), (B, S(1)): S(1), (S(1), S(0)): P, (B, B): B}
        if tuple(inputs) in known:
            return known[tuple(inputs)]
    elif op == "transpose":
        return S(1 - inputs[0].dim) if inputs[0].kind == "S" else inputs[0]
    elif len(set(inputs)) == 1 and P not in inputs:  # element by element
        return inputs[0]
    raise ValueError(f"{op} cannot compute on {inputs}: box an operand first")


NUM_STEPS, RATE, NUM_ERRORS = 5, 0.05, 10 * 3  # errors of the global batch

OPS = {
    "matmul": torch.matmul,
    "transpose": lambda a: a.mT,
    "relu": torch.relu,
    "relu_gradient": lambda gradient, a: gradient * (a > 0),
    "error": lambda y, wanted: 2 * (y - wanted) / NUM_ERRORS,
    "descend": lambda w, gradient: w - RATE * gradient,
}

# ---- 4. A program -------------------------------------------------------------------
# A job is a list of such operations on named tensors: data, not code. This one is a
# training step of a two-layer network, forward, backward and update, as one device
# would do it. It does not say where anything is.
STEP = """
h   = matmul x w1
a   = relu h
y   = matmul a w2
dy  = error y wanted
aT  = transpose a
g2  = matmul aT dy
w2T = transpose w2
da  = matmul dy w2T
dh  = relu_gradient da h
xT  = transpose x
g1  = matmul xT dh
w1+ = descend w1 g1
w2+ = descend w2 g2
"""


@dataclass(frozen=True)
class Node:
    output: str
    op: str
    inputs: tuple[str, ...]
    dst: Placement | None = None  # of a boxing


def read(text: str) -> list[Node]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [Node(out, op, tuple(inputs)) for out, _, op, *inputs in lines]


def run(program: list[Node], tensors: dict[str, Placed], net: Traffic) -> dict:
    """The executor: computes rank by rank; bytes move at boxings and nowhere else."""
    made, predicted = dict(tensors), net.received_bytes
    for node in program:
        inputs = [made[name] for name in node.inputs]
        if node.dst is not None:
            (x,) = inputs
            predicted += price(x.placement, node.dst, value(x).shape, len(x.parts))
            made[node.output] = box(x, node.dst, net)
        else:
            placement = signature(node.op, [x.placement for x in inputs])
            columns = zip(*(x.parts for x in inputs), strict=True)
            made[node.output] = Placed([OPS[node.op](*c) for c in columns], placement)
    assert net.received_bytes == predicted  # the ledger: recorded as predicted
    return made


# ---- 5. Training methods ------------------------------------------------------------
# Now a training method is a choice of placements, and the boxings it makes necessary.
# `boxed` is all the machinery: readers of a tensor read it in another placement.
def boxed(program: list[Node], name: str, dst: Placement, *readers: str) -> list[Node]:
    """Box a tensor anew before each node that makes one of `readers`."""
    result = []
    for node in program:
        if node.output in readers:
            alias = f"{name} {dst} for {node.output}"
            result.append(Node(alias, "box", (name,), dst))
            inputs = [alias if i == name else i for i in node.inputs]
            node = replace(node, inputs=tuple(inputs))
        result.append(node)
    return result


def data_parallel() -> tuple[list[Node], dict[str, Placement]]:
    """Rows are split, weights are everywhere. Then xT is S(1) and dh is S(0), so the
    signature makes g1 = xT dh a sum of terms. Box it, and every rank can update."""
    program = boxed(read(STEP), "g1", B, "w1+")
    program = boxed(program, "g2", B, "w2+")
    return program, {"x": S(0), "wanted": S(0), "w1": B, "w2": B}


def zero_3() -> tuple[list[Node], dict[str, Placement]]:
    """The same, but weights are stored split: boxed to B before each use and forgotten
    after it, with gradients boxed to where the weights live. A weight that backward
    needs again (w2) costs 1.5 times the bytes, another (w1) the same."""
    program = boxed(read(STEP), "w1", B, "h")
    program = boxed(program, "w2", B, "y", "w2T")
    program = boxed(program, "g1", S(0), "w1+")
    program = boxed(program, "g2", S(0), "w2+")
    return program, {"x": S(0), "wanted": S(0), "w1": S(0), "w2": S(0)}


def megatron() -> tuple[list[Node], dict[str, Placement]]:
    """All rows everywhere; w1 split by columns and w2 by rows. The hidden layer is then
    S(1) and relu needs nobody else; only y is made of terms. Its one boxing does not
    depend on the size of the weights at all."""
    program = boxed(read(STEP), "y", B, "dy")
    return program, {"x": B, "wanted": B, "w1": S(1), "w2": S(0)}


def train(method, tensors: dict[str, Tensor], num_ranks: int):
    program, placements = method()
    state = {n: place(t, placements[n], num_ranks) for n, t in tensors.items()}
    net = Traffic()
    for _ in range(NUM_STEPS):
        made = run(program, state, net)
        state |= {"w1": made["w1+"], "w2": made["w2+"]}
    return value(state["w1"]), value(state["w2"]), net.received_bytes // NUM_STEPS


def train_on_one_device(x: Tensor, wanted: Tensor, w1: Tensor, w2: Tensor):
    """The same by autograd, which knows nothing of any of this."""
    weights = [w1.clone().requires_grad_(), w2.clone().requires_grad_()]
    for _ in range(NUM_STEPS):
        errors = torch.relu(x @ weights[0]) @ weights[1] - wanted
        gradients = torch.autograd.grad((errors**2).mean(), weights)
        pairs = zip(weights, gradients, strict=True)
        weights = [(w - RATE * g).detach().requires_grad_() for w, g in pairs]
    return weights


def main() -> None:
    torch.manual_seed(0)
    check_the_table()
    shapes = {"x": (10, 6), "wanted": (10, 3), "w1": (6, 9), "w2": (9, 3)}
    tensors = {n: torch.randn(s, dtype=torch.float64) for n, s in shapes.items()}
    weights = train_on_one_device(**tensors)
    t1, t2, ty = 6 * 9 * 8, 9 * 3 * 8, 10 * 3 * 8  # bytes of w1, w2 and y
    for p in (1, 2, 3, 4):
        expected = {
            data_parallel: 2 * (t1 + t2) * (p - 1),
            zero_3: (2 * t1 + 3 * t2) * (p - 1),
            megatron: 2 * ty * (p - 1),
        }
        for method, num_bytes in expected.items():
            w1, w2, received_bytes = train(method, tensors, p)
            torch.testing.assert_close([w1, w2], weights, rtol=1e-12, atol=1e-12)
            assert received_bytes == num_bytes
            print(f"{method.__name__:14} {p} ranks  {num_bytes:5} bytes a step")


# The rest of placet makes this useful: docs/journey.md follows one gradient through it.
if __name__ == "__main__":
    main()
