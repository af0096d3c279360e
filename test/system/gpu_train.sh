#!/usr/bin/env bash
# One rank: 20 steps on the CPU and on the GPU give the same losses, fp32 to 1e-4 and bf16 to 1%,
# for the course's model and a small Llama; twice the same bits; with and without graphs the same
# bits; a checkpoint of either continues on the other; evaluation and text come from both.
# shellcheck source=test/system/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=test/system/gpu_common.sh
source "$TRIREME_SOURCE/test/system/gpu_common.sh"
tiny_deck
tokens

llama=(model.norm=rmsnorm model.activation=swiglu model.position=rope model.bias=no model.dropout=0
  model.heads=4 model.kv_heads=2 model.norm_position=pre model.tie_embeddings=no)
course=(model.dropout=0.1 model.attention_dropout=0.1 model.norm_position=post model.activation=relu
  model.position=sinusoidal)
gpt=(model.norm_position=pre model.activation=gelu model.position=learned model.tie_embeddings=yes)
for model in course llama gpt; do
  declare -n keys=$model
  train "$model-cpu" 1 run.device=cpu "${keys[@]}"
  train "$model-cuda" 1 run.device=cuda "${keys[@]}"
  says "device cuda"
  agree 1e-4 "$model-cuda" "$model-cpu"
  train "$model-bf16" 1 run.device=cuda run.precision=bf16 "${keys[@]}"
  says "precision bf16"
  agree 1e-2 "$model-bf16" "$model-cpu"
  unset -n keys
done

# Bits: again, without graphs, and from its middle.
train again 1 run.device=cuda run.precision=bf16 "${gpt[@]}"
train eager 1 run.device=cuda run.precision=bf16 run.graphs=no "${gpt[@]}"
run 0 "$TRIREME" -i deck.in -r gpt-bf16/checkpoints/step_00000010 job.output=middle run.device=cuda run.precision=bf16 "${gpt[@]}"
for other in again eager middle; do
  cmp "$other/checkpoints/step_00000020/model.safetensors" gpt-bf16/checkpoints/step_00000020/model.safetensors ||
    fail "$other: other bits"
done
agree 0 middle gpt-bf16 10

# A library without algorithms for some products with a bias or an activation: passes of our own in their place.
if [[ $TRIREME_DEVICE_LABEL == emulated ]]; then
  TRIREME_EMULATOR_CUBLASLT_REFUSE=50 XDG_CACHE_HOME=$scratch/cache-refused train refused 1 run.device=cuda run.precision=bf16 "${gpt[@]}"
  agree 1e-2 refused gpt-cpu
  ! cmp -s {refused,gpt-bf16}/checkpoints/step_00000020/model.safetensors || fail "nothing was refused"
fi

# fp8: scales follow the last steps, and go through a checkpoint.
if has_fp8; then
  train fp8 1 run.device=cuda run.precision=fp8 "${llama[@]}"
  says "precision fp8"
  takes_fp8 fp8
  agree 1e-2 fp8 llama-cpu
  run 0 "$TRIREME" -i deck.in -r fp8/checkpoints/step_00000010 job.output=fp8-middle run.device=cuda run.precision=fp8 "${llama[@]}"
  agree 0 fp8-middle fp8 10
  cmp {fp8,fp8-middle}/checkpoints/step_00000020/model.safetensors || fail "fp8: other bits"
fi

# From one back end to the other: the same run goes on.
run 0 "$TRIREME" -i deck.in -r llama-cpu/checkpoints/step_00000010 job.output=to-cuda run.device=cuda "${llama[@]}"
agree 1e-4 to-cuda llama-cpu 10
run 0 "$TRIREME" -i deck.in -r llama-cuda/checkpoints/step_00000010 job.output=to-cpu run.device=cpu "${llama[@]}"
agree 1e-4 to-cpu llama-cpu 10
run 0 "$TRIREME" -i deck.in -r gpt-bf16/checkpoints/step_00000010 job.output=bf16-to-cpu run.device=cpu "${gpt[@]}"
agree 1e-2 bf16-to-cpu gpt-cpu 10

evaluate() {
  run 0 "$TRIREME" -i deck.in -r llama-cpu job.task=evaluate "run.device=$1" "run.precision=$2" "${llama[@]}"
  grep -E '^(valid|test)' output | awk '{print $1, $3}' >"evaluated-$1-$2"
}
evaluate cpu fp32
evaluate cuda fp32
evaluate cuda bf16
paste -d' ' evaluated-cpu-fp32 evaluated-cuda-fp32 evaluated-cuda-bf16 | awk '
  function off(a, b) { return a > b ? (a - b) / b : (b - a) / b }
  off($4, $2) > 1e-5 || off($6, $2) > 1e-2 { print; bad = 1 } END { exit bad || NR != 2 }' || fail "evaluation differs"
for device in cpu cuda; do
  run 0 "$TRIREME" -i deck.in -r llama-cpu job.task=generate generate.tokens=6 generate.temperature=0 run.device=$device "${llama[@]}"
  cp output "text-$device"
done
cmp text-cpu text-cuda || fail "other text"
