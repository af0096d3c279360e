#!/usr/bin/env bash
# test/peers.sh [record | speed | MODEL...]: Trireme beside Hugging Face's transformers, which is installed from PyPI
# with torch (6 GB) into TRIREME_PEERS (default build/peers). Models of each family go in and out, are
# evaluated and trained by both, and models that translate are trained by torch.nn.Transformer too; a table says what
# differs by how much, and what was asked. Code 1: too much.
# With `record` only the goldens in test/peers/goldens_*.json are written anew: what the normal suite checks without
# transformers; with `speed` generation is timed (seconds after a checkpoint of 0.5 GB in TMPDIR). TRIREME: the program (default build/trireme).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
peers=${TRIREME_PEERS:-build/peers}
trireme=${TRIREME:-build/trireme}

if ! "$peers/bin/python3" -c 'import torch, transformers, h5py' 2>/dev/null; then
  echo "installing torch and transformers into $peers"
  mkdir -p "$(dirname "$peers")"
  python3 -m venv "$peers"
  "$peers/bin/python3" -m pip install -q --no-cache-dir torch transformers h5py numpy
fi
# Nothing is fetched from a hub, and no card is asked for.
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1 PYTHONPATH=test/peers
if [[ ${1:-} == record ]]; then
  "$peers/bin/python3" test/peers/record.py test/peers/goldens_models.json
  exec "$peers/bin/python3" test/peers/torch_pairs.py test/peers/goldens_pairs.json
fi
[[ -x $trireme ]] || { echo "$trireme is not there: build first, or set TRIREME" >&2; exit 2; }
if [[ ${1:-} == speed ]]; then
  unset OMP_NUM_THREADS
  exec "$peers/bin/python3" test/peers/speed.py "$(realpath "$trireme")"
fi
exec "$peers/bin/python3" test/peers/parity.py "$(realpath "$trireme")" "${TRIREME_MPIRUN:-mpirun}" "$@"
