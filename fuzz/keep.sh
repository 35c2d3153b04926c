#!/usr/bin/env bash
# Keeps the inputs of fuzz/corpus that reach most beside the seeds that are there: fuzz/keep.sh TARGET [MOST]
# Seeds are replayed by every `make test`, so they are few and small.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1 most=${2:-40}
export RUSTC_BOOTSTRAP=1
chosen=$(mktemp -d)
trap 'rm -rf "$chosen"' EXIT
cp "fuzz/seeds/$target"/* "$chosen" 2>/dev/null || true
cargo fuzz run "$target" "$chosen" "fuzz/corpus/$target" -- -set_cover_merge=1 -max_len=2048 >/dev/null 2>&1
mkdir -p "fuzz/seeds/$target"
there=$(find "fuzz/seeds/$target" -type f | wc -l)
# Those that are new, the largest first: a set cover takes what reaches most first, and that is seldom small.
while read -r input; do
  [ -e "fuzz/seeds/$target/$(basename "$input")" ] && continue
  [ "$there" -lt "$most" ] || break
  cp "$input" "fuzz/seeds/$target/$(sha1sum <"$input" | cut -c1-12)"
  there=$((there + 1))
done < <(find "$chosen" -type f -size -3k -printf '%s %p\n' | sort -rn | cut -d' ' -f2)
echo "$target: $(find "fuzz/seeds/$target" -type f | wc -l) seeds"
