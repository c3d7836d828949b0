"""Counting what a compiled program does, from its text: the instructions that its loops run in each turn, and its bytes."""

from __future__ import annotations

import re
from typing import Any

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?[\])}] ([\w\-]+)\(")
BODY = re.compile(r"\bbody=%?([\w.\-]+)")
CALLED = re.compile(r"(?:to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
# instructions that move no data and run no kernel
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}


def loop_instructions(text: str) -> tuple[int, int]:
    """``(loops, instructions)`` of an optimised HLO module: those that run once for each turn of some loop.

    A fusion is one instruction; what a conditional or a call inside a loop holds counts as well; a loop inside another
    is counted once, as a loop of its own.
    """
    counts: dict[str, int] = {}
    inner: dict[str, set[str]] = {}
    bodies: list[str] = []
    name = ""
    for line in text.splitlines():
        if opened := COMPUTATION.match(line):
            name = opened[1]
            counts[name], inner[name] = 0, set()
        elif found := INSTRUCTION.match(line):
            kind = found[1]
            counts[name] += kind not in FREE
            if kind == "while":
                bodies += BODY.findall(line)
            elif kind in ("call", "conditional"):
                inner[name].update(CALLED.findall(line))
                for branches in BRANCHES.findall(line):
                    inner[name].update(x.strip().lstrip("%") for x in branches.split(","))

    def total(name: str) -> int:
        return counts[name] + sum(map(total, inner[name]))

    return len(bodies), sum(map(total, bodies))


def work(lowered: Any) -> dict[str, int]:
    """Of a lowered program: the size of its text before optimisation, which is what compilation must read; its loops and
    their instructions after it; and the bytes of its temporaries and outputs."""
    compiled = lowered.compile()
    loops, instructions = loop_instructions(compiled.as_text())
    memory = compiled.memory_analysis()
    return dict(
        lowered_operations=sum(" = " in line for line in lowered.as_text().splitlines()),
        loops=loops,
        loop_instructions=instructions,
        bytes=memory.temp_size_in_bytes + memory.output_size_in_bytes,
    )
