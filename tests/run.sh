#!/usr/bin/env bash
# All checks: how the code is written, modules and notebooks in step, every notebook, tests/, some of
# these under plain kernels, and the site, which is built beside them; what it says comes last.
# What is checked is what git has: a new file counts once it is added, a user's own files never do.
# usage: [WORKERS=2] tests/run.sh [FOLDER OF THE VENV'S COMMANDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(cd "${1:-.venv/bin}" && pwd)
export PATH="$bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
unset LRP_LOO_DATA LRP_LOO_TRACEBACK # a user's own

# paths, which have no spaces
notebooks=$(python tests/tracked.py 'nbs/**/*.ipynb')
research=$(python tests/tracked.py 'research/nbs/*.ipynb')
modules=$(python tests/tracked.py '*.py' {lrp_loo,tests,benchmarks,docs,research,.ci}/'**/*.py')
# the notebooks as nbdev's commands take them: one expression over their names
expression() { echo "^($(sed 's|.*/||' | paste -sd '|' -))$"; }
named=$(expression <<<"$notebooks")

# a content hash for every notebook and module, so the check holds in an uncommitted tree as well; modules
# that git does not have are among them: a notebook that is new may just have written one
fingerprint() {
    python -c '
import sys
from hashlib import sha256
from pathlib import Path
homes = ("lrp_loo", "research/lrp_lab")
modules = [p for home in homes for p in Path(home).rglob("*.py") if not any(part.startswith(".") for part in p.parts)]
for p in sorted([*map(Path, sys.argv[1:]), *modules]): print(sha256(p.read_bytes()).hexdigest(), p)' $notebooks $research
}

echo "== how the code is written: ruff's rules, and its layout"
ruff check --force-exclude $modules $notebooks $research
ruff format --check --force-exclude $modules $notebooks $research

echo "== nbdev_export and nbdev_clean change nothing"
before=$(fingerprint)
nbdev_export --file_re "$named"
(cd research && nbdev_export --file_re "$(expression <<<"$research")")
python -c 'import sys; from nbdev.clean import nbdev_clean; [nbdev_clean(name) for name in sys.argv[1:]]' $notebooks $research
after=$(fingerprint)
if [ "$before" != "$after" ]; then
    echo "These files were out of step. They are right now; look at the difference, commit it and run again:" >&2
    diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]* /  /p' | sort -u >&2
    exit 1
fi

echo "== README.md says what nbs/index.ipynb says"
python .ci/readme.py --check

workers=${WORKERS:-2}
threads=$("$bin/python" -c "import os; print(max(1, (os.cpu_count() or 1)//$workers))")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}

# The site keeps one core busy for a part of the time; in a group of its own, so that all of it can be
# ended with this script, whatever ends that.
said=$(mktemp)
set -m
python .ci/site.py --build >"$said" 2>&1 &
site=$!
set +m
trap 'kill -- "-$site" 2>/dev/null || true; rm -f "$said"' EXIT
trap 'exit 130' INT TERM

echo "== notebooks"
nbdev_test --path nbs --file_re "$named" --n_workers "$workers" --timing

# a file's tests stay in one process, which shares what they are made of
beside=(-n "$workers" --dist loadfile)

echo "== tests"
pytest tests -q "${beside[@]}"

echo "== where numbers are compared, under the plainest kernels and one thread"
plain=(tests/test_{removal,exact_loo,fast,decoders,products,rules,softmax_layers}.py)
ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 pytest -q "${beside[@]}" "${plain[@]}"

echo "== the site builds, and its links, pictures and equations hold"
status=0
wait "$site" || status=$?
cat "$said"
exit "$status"
