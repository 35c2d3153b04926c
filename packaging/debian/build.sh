#!/usr/bin/env bash
# Makes target/debian/headwall_<version>_<arch>.deb from a release binary.
#
#   packaging/debian/build.sh [BINARY]        # absent: target/release/headwall
#
# Needs dpkg-dev, and cargo for the licences of the crates. The binary has to run here: it is asked for its version, and to check the
# configuration that the package brings. Two runs from one commit give the same bytes.
# DEBFULLNAME and DEBEMAIL say whose package it is, HOMEPAGE where it comes from.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=${1:-target/release/headwall}
here=packaging/debian
export LC_ALL=C
umask 022

fail() { echo "build.sh: $*" >&2; exit 1; }
for tool in dpkg-deb dpkg-shlibdeps strip; do
  command -v "$tool" >/dev/null || fail "$tool is missing (apt-get install dpkg-dev)"
done
[ -x "$binary" ] || fail "there is no $binary; cargo build --locked --release makes it"

version=$("$binary" --version | sed -n 's/^headwall \([0-9][0-9A-Za-z.+~-]*\)$/\1/p')
[ -n "$version" ] || fail "$binary does not say its version"
# Debian sorts a tilde before everything: 0.2.0-rc.1 is older than 0.2.0.
version=${version/-/\~}
arch=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-Headwall maintainers} <${DEBEMAIL:-maintainers@headwall.invalid}>"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
package=$root/debian/headwall      # where dpkg-shlibdeps looks for one
place() { install -D -m "$1" "$2" "$package/$3"; }

place 0755 "$binary" usr/bin/headwall
strip --remove-section=.comment "$package/usr/bin/headwall"
place 0644 conf/minimal.yaml etc/headwall/headwall.yaml
"$package/usr/bin/headwall" check --config "$package/etc/headwall/headwall.yaml"
place 0644 packaging/systemd/headwall.service lib/systemd/system/headwall.service
place 0644 packaging/systemd/headwall.logrotate etc/logrotate.d/headwall
place 0644 $here/copyright usr/share/doc/headwall/copyright
packaging/notices.sh "$package/usr/share/doc/headwall/NOTICES"
place 0644 conf/headwall.yaml usr/share/doc/headwall/examples/headwall.yaml
place 0644 packaging/systemd/token.conf usr/share/doc/headwall/examples/token.conf
place 0644 $here/headwall.1 usr/share/man/man1/headwall.1
place 0644 $here/lintian-overrides usr/share/lintian/overrides/headwall
place 0644 CHANGELOG.md usr/share/doc/headwall/NEWS.md
cat >"$package/usr/share/doc/headwall/changelog" <<TEXT
headwall ($version) unstable; urgency=medium

  * What changed is in NEWS.md.gz beside this file.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
TEXT
gzip -9n "$package"/usr/share/man/man1/headwall.1 "$package"/usr/share/doc/headwall/{changelog,NEWS.md,NOTICES}

# Which libraries, and since which version, is read off the binary.
mkdir "$package/DEBIAN"
printf 'Source: headwall\n\nPackage: headwall\nArchitecture: any\n' >"$root/debian/control"
libs=$(cd "$root" && dpkg-shlibdeps -O debian/headwall/usr/bin/headwall | sed -n 's/^shlibs:Depends=//p')
[ -n "$libs" ] || fail "no libraries found"

size=$(du -k --apparent-size -s "$package" | cut -f1)
sed -e "s|@VERSION@|$version|" -e "s|@ARCH@|$arch|" -e "s|@MAINTAINER@|$maintainer|" \
  -e "s|@SIZE@|$size|" -e "s|@LIBS@|$libs|" \
  -e "${HOMEPAGE:+s|@HOMEPAGE@|$HOMEPAGE|;}/@HOMEPAGE@/d" $here/control.in >"$package/DEBIAN/control"
printf '%s\n' /etc/headwall/headwall.yaml /etc/logrotate.d/headwall >"$package/DEBIAN/conffiles"
install -m 0755 $here/{postinst,prerm,postrm} "$package/DEBIAN/"
(cd "$package" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$package/DEBIAN/md5sums"
find "$package" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

mkdir -p target/debian
dpkg-deb --root-owner-group --build "$package" "target/debian/headwall_${version}_$arch.deb"
