"""A run folder as a job leaves it, made without a job: for tests of what reads it.

The run is a byte-level language model of a few blocks under data parallelism with
sharded updates: gradients are reduce-scattered while backward runs, and parameters
are all-gathered after the update. Times are made up, bytes are exact. Boxings do not
say how long they were waited for, as in runs recorded before they did.
"""

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

BLOCKS = ("embed", *(f"blocks.{i}" for i in range(4)), "head")
PARAMETERS = (65_536, 198_272, 198_272, 198_272, 198_272, 65_792)
UNIX_START = 1_789_222_530.0


def write_run(
    folder: Path,
    *,
    num_ranks: int = 2,
    num_steps: int = 120,
    recorded: Sequence[int] = (3, 4, 5),
    status: str | None = "done",
    seed: int = 0,
) -> Path:
    """Write the events of a synthetic run into `folder`; `status` None: no end."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        random_ = random.Random(seed)  # steps and losses are those of all ranks
        events = _events(rank, num_ranks, num_steps, set(recorded), random_)
        lines = [json.dumps(event) for event in events]
        if status is not None:
            lines += [json.dumps(e) for e in _end(num_ranks, num_steps, status)]
        text = "\n".join(lines) + "\n"
        (folder / f"events-rank{rank}.jsonl").write_text(text, encoding="utf-8")
    return folder


def boxings(num_ranks: int) -> list[Event]:
    """The plan's boxings; none for one rank."""
    if num_ranks == 1:
        return []
    found = []
    for block, size in zip(BLOCKS, PARAMETERS, strict=True):
        part = 4 * size * (num_ranks - 1) // num_ranks
        for name, src, dst in (("grads", "P(sum)", "S(0)"), ("params", "S(0)", "B")):
            found.append(
                {
                    "name": f"{name}.{block}",
                    "src": src,
                    "dst": dst,
                    "axis": "data",
                    "tensors": 2 if block in ("embed", "head") else 12,
                    "payload_bytes": 4 * size,
                    "sent_bytes": part,
                    "received_bytes": part,
                    "bound_bytes": part,
                }
            )
    return found


def step_bytes(num_ranks: int) -> int:
    """Bytes a rank sends (and receives) in one step."""
    return sum(int(boxing["sent_bytes"]) for boxing in boxings(num_ranks))


def plan(num_ranks: int) -> str:
    """A printed program."""
    lines = [f"program char_gpt on Mesh('data={num_ranks}')", ""]
    lines += [
        f"  load     batch                 S(0)        {num_ranks} parts of 64 rows"
    ]
    lines += [f"  compute  {block + '.forward':<21} S(0) -> S(0)" for block in BLOCKS]
    lines += [f"  compute  {b + '.backward':<21} S(0) -> P(sum)" for b in BLOCKS[::-1]]
    for boxing in boxings(num_ranks):
        change = f"{boxing['src']} -> {boxing['dst']} @{boxing['axis']}"
        lines += [
            f"  boxing   {boxing['name']:<21} {change:<22} "
            f"{boxing['received_bytes'] / 2**10:8.1f} KiB received"
        ]
    lines += [
        "  update   adamw                 S(0)",
        "",
        "  bytes a step, each rank: ",
    ]
    lines[-1] += f"{step_bytes(num_ranks):,} sent"
    return "\n".join(lines)


def _start(rank: int, num_ranks: int, num_steps: int) -> Event:
    return {
        "kind": "start",
        "t": 0,
        "time_unix": UNIX_START,
        "name": "char_gpt",
        "rank": rank,
        "num_ranks": num_ranks,
        "first_step": 1,
        "last_step": num_steps,
        "mesh": f"Mesh('data={num_ranks}')",
        "plan": plan(num_ranks),
        "division": None,
        "argv": ["placet", "train", "char_gpt", "-n", str(num_ranks)],
        "environment": {
            "python": "3.11.9",
            "torch": "2.13.0",
            "system": ("Linux x86_64", "Linux aarch64")[rank // 2 % 2],
            "cores": 2,
            "threads": 1,
        },
        "model": {"parameters": sum(PARAMETERS), "name": "GPT"},
        "boxings": boxings(num_ranks),
    }


def _events(
    rank: int,
    num_ranks: int,
    num_steps: int,
    recorded: set[int],
    random_: random.Random,
) -> Iterator[Event]:
    yield _start(rank, num_ranks, num_steps)
    t = 1.3
    sent = step_bytes(num_ranks)
    for step in range(1, num_steps + 1):
        base = 1.28 + 4.3 * math.exp(-step / (0.12 * num_steps + 5))
        loss = base * random_.lognormvariate(0, 0.025)
        took = 0.061 * random_.lognormvariate(0, 0.09) + (0.4 if step == 1 else 0)
        took += 0.05 if random_.random() < 0.01 else 0
        if step in recorded:
            yield from _nodes(step, t, took, num_ranks, random.Random(step * 7 + rank))
        t += took
        yield {
            "kind": "step",
            "t": round(t, 6),
            "step": step,
            "seconds": round(took, 6),
            "loss": loss,
            "lr": 3e-4
            * min(1, step / 20)
            * (0.55 + 0.45 * math.cos(step / num_steps * 3)),
            "targets": 8192,
            "grad_norm": 0.4 + 2.2 * math.exp(-step / 30) + random_.random() * 0.15,
            "sent_bytes": sent,
            "received_bytes": sent,
            "skipped": False,
        }
        if step % max(num_steps // 6, 1) == 0:
            metrics = {"loss": base * 1.03, "bits_per_byte": base * 1.03 / math.log(2)}
            yield {"kind": "evaluate", "t": t, "step": step, "metrics": metrics}
        if step % max(num_steps // 2, 1) == 0:
            path = f"checkpoints/step-{step}"
            yield {"kind": "save", "t": t, "step": step, "path": path, "seconds": 0.21}


def _nodes(
    step: int, t: float, took: float, num_ranks: int, random_: random.Random
) -> Iterator[Event]:
    """Nodes and moves of one step: load, forward, backward, update, parameters."""
    total = sum(PARAMETERS)
    at = t + random_.random() * 0.0008
    planned = {boxing["name"]: boxing for boxing in boxings(num_ranks)}

    def node(name: str, lane: str, share: float) -> Event:
        nonlocal at
        start, at = at, at + share * took * (0.96 + 0.06 * random_.random())
        return {
            "kind": "node",
            "t": at,
            "step": step,
            "name": name,
            "lane": lane,
            "start": start,
            "end": at - 0.00005,
        }

    def move(name: str, start: float) -> tuple[Event, float]:
        box = planned[name]
        end = (
            start + 0.0011 + box["sent_bytes"] / 2.2e8 * (0.9 + 0.3 * random_.random())
        )
        bytes_ = {key: box[key] for key in ("sent_bytes", "received_bytes")}
        predicted = {f"predicted_{key}": value for key, value in bytes_.items()}
        span = {"name": name, "start": start, "end": end}
        told = {"kind": "boxing", "t": end, "step": step}
        return {**told, **span, **bytes_, **predicted}, end

    yield node("batch", "load", 0.03)
    sizes = dict(zip(BLOCKS, PARAMETERS, strict=True))
    for block in BLOCKS:
        yield node(f"{block}.forward", "compute", 0.26 * sizes[block] / total)
    free = at
    for block in BLOCKS[::-1]:
        yield node(f"{block}.backward", "compute", 0.5 * sizes[block] / total)
        if planned:
            event, free = move(f"grads.{block}", max(at, free - 0.002))
            yield event
    at = max(at, free)
    yield node("adamw", "update", 0.06)
    start = at
    for block in BLOCKS if planned else ():
        event, at = move(f"params.{block}", start)
        start += 0.0012
        yield event


def _end(num_ranks: int, num_steps: int, status: str) -> Iterator[Event]:
    seconds = 2.0 + 0.061 * num_steps
    rows = [["placet", 1.91], ["order-2 bytes", 2.93], ["lzma", 2.38]]
    text = (
        "def read_lines(self, path):\n"
        '    """Return the lines of the file.\n\n'
        "    If the path is not a string, raise TypeError.\n"
        '    """\n'
        "    if not isinstance(path, str):\n"
        '        raise TypeError("expected str, got %r" % (path,))\n'
        "    with self._open(path) as f:\n"
        "        return [line.strip() for line in f if line <> '']\n"
    )
    yield {
        "kind": "result",
        "t": seconds,
        "title": "Bits per byte",
        "rows": rows,
        "text": text,
    }
    ledger = {
        "boxings": 2 * step_bytes(num_ranks) * num_steps,
        "control": 18_431 * (num_ranks - 1),
        "foreign": 9_310 * (num_ranks - 1),
        "files": 6_553_600,
    }
    yield {
        "kind": "end",
        "t": seconds,
        "status": status,
        "step": num_steps,
        "seconds": seconds,
        "ledger": ledger,
    }
