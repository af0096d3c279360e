#!/usr/bin/env bash
# Two ranks of one thread against one process of two threads, in turn, so that a noisy machine is as
# noisy for both: bash test/benchmark/layouts.sh [ROUNDS] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3} steps=${2:-5}
cmake -S . -B build-benchmark -G Ninja -DTRIREME_TESTS=OFF -DTRIREME_BENCHMARKS=ON > /dev/null
cmake --build build-benchmark --target trireme_layouts_benchmark > /dev/null
for round in $(seq "$rounds"); do
  for model in jsc gpt12; do
    echo "round $round"
    OMP_NUM_THREADS=2 build-benchmark/trireme_layouts_benchmark $model "$steps"
    OMP_NUM_THREADS=1 bash test/mpirun.sh mpirun -n 2 \
      build-benchmark/trireme_layouts_benchmark $model "$steps"
  done
done
