"""Calls a function of a case in a process of its own, and prints the figures that it returns as the last line.

python -m benchmarks.call benchmarks.cases.images:opencv_loop '{"folder": "/tmp/images"}'
"""

import importlib
import json
import os
import sys


def main(name: str, arguments: str) -> None:
    module, _, function = name.partition(":")
    figures = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(f"\n{json.dumps(figures)}", flush=True)
    os._exit(0)  # without waiting for the threads and pools of other libraries


if __name__ == "__main__":
    main(*sys.argv[1:])
