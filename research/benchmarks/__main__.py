"""Run a benchmark: python research/benchmarks NAME [OPTIONS]; README.md lists them."""

import sys
from importlib import import_module

NAMES = ('cost', 'gpu', 'peers', 'faults', 'the_same', 'every_family')

if __name__ == '__main__':
    name, *words = sys.argv[1:] or ['']
    if name not in NAMES:
        sys.exit(f'no benchmark {name!r}; take one of {", ".join(NAMES)}')
    sys.exit(import_module(name).main(words))
