"""How many states of the forward solve are kept, and how many are replayed at a time.

The two-level rule: t and h of every step are kept. States are kept for every s-th step, s doubling as the buffer fills
(every other state is dropped). The reverse pass walks through blocks of s steps, and takes the states of a block from its
checkpoint by the recorded steps, without step control and without rejections: one more forward solve in all.
"""

from __future__ import annotations

from typing import NamedTuple


class Checkpoints(NamedTuple):
    """``slots``: states kept, an even number, and a whole number of blocks where there are several.

    ``window, block``: the most and the fewest rows that are replayed together, powers of two.
    """

    slots: int
    window: int
    block: int


def checkpoints_of_number(rows: int, count: int, block: int) -> Checkpoints | None:
    """At most ``count`` states kept; None where that is all of them."""
    if count < 2:
        raise ValueError(f"checkpoints={count}: at least 2 states must be kept")
    if count >= rows:
        return None
    slots, window = _whole(count, block), block
    while slots * window < rows:
        window *= 2
    return Checkpoints(slots, window, block)


def plan_checkpoints(rows: int, state_bytes: int, per_row: int, block: int, memory: int) -> Checkpoints | None:
    """The split of a budget of ``memory`` bytes for one trajectory; None where everything fits.

    rows: steps that there may be. per_row: states that a replayed step takes (``s + 2`` with its slopes, else 1).
    block: the fewest rows to replay together, a power of two.
    """
    budget = memory // max(state_bytes, 1)
    if rows * per_row <= budget:
        return None
    windows = [block * 2**i for i in range(rows.bit_length())]
    for window in windows:
        slots = _whole(budget - window * per_row, block)
        if slots >= 2 and slots * window >= rows:
            return Checkpoints(min(slots, _whole(rows + max(block, 2), block)), window, block)
    least = state_bytes * min(_least(rows, w, block) + w * per_row for w in windows)
    raise ValueError(
        f"memory={memory} bytes hold {budget} states of {state_bytes} bytes; {rows} steps need at least {least} bytes. "
        f"Give memory={least} or more, or a smaller max_steps."
    )


def _whole(slots: int, block: int) -> int:
    """Rounded down to an even number, and to whole blocks where there are several."""
    unit = max(block, 2) if slots >= block else 2
    return slots // unit * unit


def _least(rows: int, window: int, block: int) -> int:
    """The fewest slots that cover ``rows`` at ``window`` each."""
    slots = max(2, -(-rows // window // 2) * 2)
    return slots if slots < block else -(-slots // block) * block
