#!/bin/sh
# Writes the licences of all that is compiled into Headwall into a file: most of them ask to
# go with the binary. Each text stands there once, with the crates that it belongs to.
#
#   packaging/notices.sh FILE
#
# Wants cargo, with the sources of the crates fetched (after a build they are).
set -eu
out=$1
home=${CARGO_HOME:-$HOME/.cargo}
texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT

cargo tree --locked --edges normal --prefix none --format '{p}|{l}' | sort -u >"$texts/crates"
while IFS='|' read -r package licence; do
	# `bytes v1.11.1`, `serde_derive v1.0.228 (proc-macro)`; and ourselves, with a path
	case $package in
	*"(/"* | '') continue ;;
	esac
	name=${package%% *}
	version=${package#* v}
	crate=$name-${version%% *}
	for folder in "$home"/registry/src/*/"$crate"; do break; done
	[ -d "$folder" ] || { echo "notices.sh: no sources of $crate" >&2; exit 1; }
	echo "$crate: ${licence% (\*)}" >>"$texts/list"
	find "$folder" -maxdepth 3 -type f ! -name '*.rs' \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'copyright*' \) |
		LC_ALL=C sort | while read -r file; do
		sum=$(sha256sum <"$file")
		sum=${sum%% *}
		[ -e "$texts/$sum.text" ] || cp "$file" "$texts/$sum.text"
		echo "$crate" >>"$texts/$sum.crates"
	done
done <"$texts/crates"

{
	echo "Headwall contains these crates, under these licences:"
	echo
	LC_ALL=C sort -u "$texts/list"
	for text in "$texts"/*.text; do
		printf '\n--------------------------------------------------------------------------------\n'
		LC_ALL=C sort -u "${text%.text}.crates" | paste -sd ' ' - | fold -sw 80
		echo
		cat "$text"
	done
} >"$out"
