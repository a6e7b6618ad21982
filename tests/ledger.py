"""Puts every claim to the rows that were measured.   python tests/ledger.py [--write]"""

import sys
from pathlib import Path

from tracked import tracked

from lrp_loo.studies.ledger import ledger, ledger_table, write_ledger
from lrp_loo.studies.reproduce import entries_by_study

RESULTS = Path(__file__).parent.parent / 'results'
KEPT = RESULTS / 'claims.json'


def folders():
    "The folders of results that are kept."
    return sorted({path.parent for path in tracked('results/folder*/*.json')})


def main(words):
    if '--write' in words:
        entries = write_ledger(folders(), KEPT, entries_by_study())
    else:
        entries = ledger(folders(), entries_by_study())
    print(ledger_table(entries).T.to_string())


if __name__ == '__main__':
    main(sys.argv[1:])
