"""Constants that a program may change after their import, and functions that read them."""

from myrmidon import task
from tests.functions import more_constants

RATE = 1.5
UNUSED = 3
SHAPE = (1, 2)
COUNTED = 0
SWITCHED = 1
if RATE > 1:
    SWITCHED = 2
REGISTRY = {"a": 1}
LAZY = None


@task
def cost(x: int) -> float:
    return area(x) * RATE


def area(x: int) -> int:
    global COUNTED
    COUNTED += 1
    return x * SHAPE[0] * SWITCHED * more_constants.DEPTH * len(REGISTRY) * (1 if LAZY is None else 2)
