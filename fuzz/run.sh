#!/usr/bin/env bash
# Runs fuzz targets one after the other and tells what came of each: fuzz/run.sh MINUTES [TARGET...]
# One that has found a fault says in which file its input is. The seeds are where it begins; what else leads to
# code that none of them has seen goes into fuzz/corpus, which is not kept (fuzz/keep.sh does).
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1
shift
export RUSTC_BOOTSTRAP=1 # libFuzzer needs what the stable compiler has, and does not promise

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
# A name that is none is said at once, and not after the others have run.
for target in "${targets[@]}"; do
  [ -f "fuzz/fuzz_targets/$target.rs" ] || { echo "there is no target $target; there are: $(basename -s .rs fuzz/fuzz_targets/*.rs | xargs)" >&2; exit 2; }
done
if [ ${#targets[@]} = 1 ]; then cargo fuzz build "${targets[0]}"; else cargo fuzz build; fi

found=0
printf '%-16s %12s %8s %8s  %s\n' target executions cov ft faults
for target in "${targets[@]}"; do
  corpus=fuzz/corpus/$target log=fuzz/corpus/$target.log
  mkdir -p "$corpus"
  faults=none
  cargo fuzz run "$target" "$corpus" "fuzz/seeds/$target" -- -max_total_time=$((minutes * 60)) -timeout=10 \
    -max_len=4096 -rss_limit_mb=2048 -print_final_stats=1 >"$log" 2>&1 ||
    { faults=$(sed -n 's/^.*Test unit written to //p' "$log" | tail -1); faults=${faults:-see $log}; found=1; }
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  read -r _ cov _ ft <<<"$(grep -aoE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -1 || true)"
  printf '%-16s %12s %8s %8s  %s\n' "$target" "${executions:--}" "${cov:--}" "${ft:--}" "$faults"
done
exit $found
