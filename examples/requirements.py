"""A function with requirements: bots install the package in an environment of its own; this program does not need it.

myrmidon up &
python examples/requirements.py 1500 2000000
"""

from __future__ import annotations

import sys

from myrmidon import Client, task


@task(requirements=["humanize==4.*"])
def readable(size: int) -> str:
    import humanize  # inside: only the environment of the function has it

    return str(humanize.naturalsize(size))


if __name__ == "__main__":
    with Client() as client:
        for text in client.map(readable, [int(word) for word in sys.argv[1:]]):
            print(text)
