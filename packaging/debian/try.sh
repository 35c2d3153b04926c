#!/usr/bin/env bash
# Tries the package and the unit as an administrator would meet them: installs it on a Debian
# with systemd running (a container of systemd-nspawn, without a network), changes its
# configuration, breaks it, upgrades, removes and purges it.
#
#   packaging/debian/try.sh [PACKAGE]       # absent: the one in target/debian
#
# Needs root, mmdebstrap, systemd-container and dpkg-dev.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || { echo "this boots a container; run it as root" >&2; exit 1; }
  package=$(realpath "${1:-$(ls target/debian/headwall_*.deb)}")
  work=$(mktemp -d "${TMPDIR:-/tmp}/headwall-debian.XXXXXX")
  trap 'rm -rf --one-file-system "$work"' EXIT
  mmdebstrap --quiet --variant=minbase \
    --include=systemd,systemd-sysv,dbus,procps,adduser,netbase,curl,logrotate,man-db,python3 bookworm "$work/root"
  cp "$package" "$work/root/root/first.deb"
  dpkg-deb --raw-extract "$package" "$work/next"
  sed -i 's/^Version: .*/&+next/' "$work/next/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$work/next" "$work/root/root/next.deb" >/dev/null
  cp "$0" "$work/root/root/try.sh"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$work/root/etc/hosts"
  cat >"$work/root/etc/systemd/system/try.service" <<'UNIT'
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
ExecStart=-/bin/bash -c 'bash /root/try.sh --inside >/root/told 2>&1; echo $? >/root/status'
ExecStartPost=/bin/systemctl --no-block poweroff
UNIT
  mkdir -p "$work/root/etc/systemd/system/multi-user.target.wants"
  ln -s ../try.service "$work/root/etc/systemd/system/multi-user.target.wants/"
  # A tree of control groups of its own, and a /run: so it does not matter what runs here as process 1.
  # shellcheck disable=SC2016
  timeout --signal=KILL 180 unshare --mount --propagation private --pid --fork --kill-child --mount-proc bash -euc '
    mount -t tmpfs tmpfs /run
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
    systemd-nspawn --quiet --register=no --keep-unit --private-network --console=read-only --boot --directory="$0"
  ' "$work/root" >"$work/console" 2>&1 || true
  cat "$work/root/root/told" || { tail -n 20 "$work/console"; echo "FAILED: it did not boot"; exit 1; }
  exit "$(cat "$work/root/root/status")"
fi

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
number=0
is() {
  number=$((number + 1))
  [ "$2" = "$3" ] && echo "ok $number - $1" && return
  echo "FAILED: $1: expected \`$2\`, got \`$3\`"
  journalctl --no-pager --output=cat --lines=20
  exit 1
}
of() { systemctl show --property="$1" --value headwall; }
status() { "$@" >/root/last 2>&1 && echo 0 || echo $?; }
state() { systemctl is-active headwall || true; }
get() { curl --silent --max-time 10 "$@" || true; }
settled() { for _ in $(seq 50); do curl --silent --output /dev/null http://127.0.0.1:9900/health && return; sleep 0.1; done; }
all() { find / -xdev -name '*headwall*' -not -path '/proc/*' -not -path '/var/cache/*' | sort | xargs; }
file=/etc/headwall/headwall.yaml

# An app on port 3000 and on a socket; /slow takes four seconds.
cat >/root/app.py <<'APP'
import http.server, os, socketserver, threading, time
class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(4 if self.path == '/slow' else 0)
        self.send_response(200)
        self.send_header('Content-Length', '3')
        self.end_headers()
        self.wfile.write(b'app')
    def address_string(self):
        return ''
class Unix(socketserver.ThreadingUnixStreamServer):
    pass
os.makedirs('/run/app')
unix = Unix('/run/app/socket', App)
os.chmod('/run/app/socket', 0o666)
threading.Thread(target=unix.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(('127.0.0.1', 3000), App).serve_forever()
APP
python3 /root/app.py 2>/dev/null &

is "it installs" 0 "$(status dpkg -i /root/first.deb)"
is "it runs" active "$(state)"
is "it starts with the machine" enabled "$(systemctl is-enabled headwall)"
is "it is its own user, who cannot log in" "headwall /usr/sbin/nologin" \
  "$(ps -o user= -p "$(of MainPID)") $(getent passwd headwall | cut -d: -f7)"
is "the shipped configuration is fine" 0 "$(status headwall check --config $file)"
is "systemd has nothing to say about the unit" "0" "$(status systemd-analyze verify /lib/systemd/system/headwall.service)$(cat /root/last)"
is "its exposure is below 2.0" 0 "$(status systemd-analyze security --offline=true --threshold=20 /lib/systemd/system/headwall.service)"
sed -n 's/^→ //p' /root/last
is "it may bind low ports, and nothing else" 0000000000000400 "$(sed -n 's/^CapBnd:\t//p' "/proc/$(of MainPID)/status")"
is "it is behind a filter of system calls" 2 "$(sed -n 's/^Seccomp:\t//p' "/proc/$(of MainPID)/status")"

cat >$file <<'YAML'
listen: ["0.0.0.0:80"]
admin: { listen: "127.0.0.1:9900" }
log: { access: { file: /var/log/headwall/access.log } }
upstreams:
  app: { servers: ["localhost:3000"] }
  socket: { servers: ["unix:/run/app/socket"] }
routes:
  - match: { prefix: /cache/ }
    to: { kv: {} }
  - match: { path: /socket }
    to: { proxy: socket }
  - to: { proxy: app }
YAML
is "it restarts" 0 "$(status systemctl restart headwall)"
settled
is "on port 80, with a name for the app" app "$(get http://127.0.0.1/)"
is "with a socket for the app" app "$(get http://127.0.0.1/socket)"
get -X PUT -d kept http://127.0.0.1/cache/k
sleep 1.2
is "its log is not for everybody" "640 headwall" "$(stat -c '%a %U' /var/log/headwall/access.log)"
for time in once twice; do
  is "logrotate runs $time" 0 "$(status logrotate --force /etc/logrotate.d/headwall)"
  sleep 0.3
  get http://127.0.0.1/after/$time >/dev/null
  sleep 1.2
  is "it writes to the new log, $time" 1 "$(grep -c "/after/$time" /var/log/headwall/access.log)"
done
is "the old ones are compressed" 1 "$(find /var/log/headwall -name '*.gz' | wc -l)"

pid=$(of MainPID)
sed -i 's/kv: {}/kv: { max_value: 1MiB }/' $file
is "a reload takes a change over" 0 "$(status systemctl reload headwall)"
sleep 0.3
is "and keeps what is stored" "kept $pid" "$(get http://127.0.0.1/cache/k) $(of MainPID)"
cp $file /root/fine
echo 'wrong: 1' >>$file
is "a reload with a mistake fails" 1 "$(status systemctl reload headwall)"
is "and changes nothing" "kept $pid" "$(get http://127.0.0.1/cache/k) $(of MainPID)"
is "an upgrade with a mistake" 0 "$(status dpkg -i --force-confold /root/next.deb)"
is "says what is wrong" 1 "$(grep -c 'headwall.yaml:[0-9:]* .*wrong' /root/last)"
is "and leaves the process alone" "kept $pid" "$(get http://127.0.0.1/cache/k) $(of MainPID)"
is "a restart with a mistake fails" 1 "$(status systemctl restart headwall)"
sleep 15
is "and is not tried for ever" failed "$(state || true)"
cp /root/fine $file
systemctl reset-failed headwall
is "mended, it starts" 0 "$(status systemctl start headwall)"
pid=$(of MainPID)
is "an upgrade" 0 "$(status dpkg -i --force-confold /root/first.deb)"
is "restarts it" "active other" "$(state) $([ "$pid" = "$(of MainPID)" ] || echo other)"

settled
get http://127.0.0.1/slow >/root/slow &
sleep 1
is "it stops" 0 "$(status systemctl stop headwall)"
is "with the answers that it owed" "app success 0" "$(wait $! && cat /root/slow) $(of Result) $(of ExecMainStatus)"
systemctl start headwall
kill -9 "$(of MainPID)"
sleep 3
is "killed, it comes back" active "$(state)"

mkdir /etc/systemd/system/headwall.service.d
cp /usr/share/doc/headwall/examples/token.conf /etc/systemd/system/headwall.service.d/
token=0123456789abcdef0123456789abcdef
printf '%s' $token | install -m 0600 /dev/stdin /etc/headwall/token
# shellcheck disable=SC2016
sed -i 's/kv: {[^}]*}/kv: { allow: [], token_file: "${CREDENTIALS_DIRECTORY}\/token" }/' $file
systemctl daemon-reload
is "a token comes from a credential" 0 "$(status systemctl restart headwall)"
settled
is "and is asked for" "401 201" "$(get -o /dev/null -w '%{http_code}' -X PUT -d v http://127.0.0.1/cache/t) $(get -o /dev/null -w '%{http_code}' -X PUT -d v -H "Authorization: Bearer $token" http://127.0.0.1/cache/t)"
echo 'wrong: 1' >>$file
is "a mistake ends a restart with it too" 1 "$(status systemctl restart headwall)"
sed -i '$d' $file
systemctl reset-failed headwall
is "mended, it starts with it" 0 "$(status systemctl restart headwall)"
is "a reload works with it" 0 "$(status systemctl reload headwall)"
rm -r /etc/systemd/system/headwall.service.d /etc/headwall/token
# shellcheck disable=SC2016
sed -i 's/token_file: "[^"]*"/tokens: ["${HEADWALL_TOKEN}"]/' $file
printf '# for the service\nHEADWALL_TOKEN="%s"\n' $token | install -m 0600 /dev/stdin /etc/headwall/environment
systemctl daemon-reload
is "a token comes from the environment" 0 "$(status systemctl restart headwall)"
pid=$(of MainPID)
is "an upgrade knows it too" 0 "$(status dpkg -i --force-confold /root/next.deb)"
is "and restarts" "active other" "$(state) $([ "$pid" = "$(of MainPID)" ] || echo other)"

is "it is removed" 0 "$(status dpkg -r headwall)"
is "and does not run, but keeps its files" "inactive /etc/headwall /etc/headwall/headwall.yaml" \
  "$(state) $(all | tr ' ' '\n' | grep '^/etc/headwall' | xargs)"
is "it comes back" 0 "$(status dpkg -i --force-confold /root/first.deb)"
is "as it was" active "$(state)"
is "it is purged" 0 "$(status dpkg -P headwall)"
is "and leaves nothing but its user" " headwall" "$(all) $(id -nu headwall)"
mkdir -p /etc/headwall
echo 'wrong: 1' >$file
is "it installs over a file with a mistake" 0 "$(status dpkg -i --force-confold /root/first.deb)"
is "without starting" inactive "$(state)"
echo "$number passed, 0 failed"
