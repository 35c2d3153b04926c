#!/usr/bin/env bash
# Tries the image, and what docker-compose.yml makes of it, on a machine without an engine:
# runs the steps of the Dockerfile (dockerfile.py reads them out of it) in folders with Debian
# in them, then the result, as the image says, as its user, without capabilities, on a
# read-only root, in networks of its own.
#
#   packaging/try-dockerfile.sh                     # all of it; compiles for some minutes
#   packaging/try-dockerfile.sh --binary FILE       # the last stage alone, with this binary
#   KEEP=1 packaging/try-dockerfile.sh ...          # leaves the folders, and says where
#   CACHE=FOLDER packaging/try-dockerfile.sh        # keeps what the cache mounts hold for the next time
#
# Needs root, mmdebstrap, iproute2, curl, Node, and the Rust that the Dockerfile names.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "FAILED: $*" >&2; exit 1; }

if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || fail "this makes namespaces and mounts; run it as root"
  for tool in mmdebstrap unshare ip curl node python3 rustc; do
    command -v "$tool" >/dev/null || fail "$tool is missing"
  done
  work=$(mktemp -d "${TMPDIR:-/tmp}/headwall-image.XXXXXX")
  if [ -n "${KEEP:-}" ]; then echo "in $work"; else trap 'rm -rf --one-file-system "$work"' EXIT; fi
  if [ -n "${CACHE:-}" ]; then mkdir -p "$CACHE" && ln -s "$(realpath "$CACHE")" "$work/cache"; fi
  apart=(unshare --mount --propagation private --pid --fork --kill-child --mount-proc)
  "${apart[@]}" python3 packaging/dockerfile.py . "$work" "$@"
  "${apart[@]}" --net bash "$0" --inside "$work"
  exit 0
fi

work=$2
root=$work/root
declare -a user environment entrypoint command health ports stop folder
# shellcheck source=/dev/null
. "$work/image.sh"
number=0
is() {
  number=$((number + 1))
  [ "$2" = "$3" ] || fail "$1: expected \`$2\`, got \`$3\`; the logs: $(tail -n 5 "$work"/*.log)"
  echo "ok $number - $1"
}

# What an engine gives a container: /proc, a few devices, the names of its neighbours.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero urandom; do
  touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$work/etc-headwall" && cp -r "$root/etc/headwall/." "$work/etc-headwall"
mount -t tmpfs tmpfs /run
contained() { # NETWORK NAME=VALUE... -- COMMAND...: as the image says; not a process more, so that $! is it
  local network=$1 variables=()
  shift
  while [ "$1" != -- ]; do variables+=("$1") && shift; done
  shift
  exec ip netns exec "$network" chroot "$root" /usr/bin/setpriv --reuid "${user[0]%:*}" --regid "${user[0]#*:}" \
    --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all \
    /usr/bin/env -i --chdir="${folder[0]}" "${environment[@]}" "${variables[@]}" "$@"
}
code() { curl --silent --max-time 10 --output /dev/null --write-out '%{http_code}' "$@" || true; }
healthy() { for _ in $(seq 50); do (contained "$1" -- "${health[@]}" &>/dev/null) && return; sleep 0.2; done; fail "not healthy; $(cat "$work"/*.log)"; }

# The network of docker-compose.yml: this namespace is the host, with the bridge's gateway.
# shellcheck disable=SC2016
net=$(sed -n 's/.*gateway: "${HEADWALL_NET:-\([0-9.]*\)}.1"/\1/p' docker-compose.yml)
[ -n "$net" ] || fail "docker-compose.yml does not name its gateway"
ip link set lo up
ip link add edge type bridge
ip address add "$net.1/28" dev edge
ip link set edge up
last=2
for name in app headwall other; do
  ip netns add "$name"
  ip link add "veth$last" type veth peer name eth0 netns "$name"
  ip link set "veth$last" master edge up
  ip -n "$name" link set lo up
  ip -n "$name" address add "$net.$last/28" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" route add default via "$net.1"
  last=$((last + 1))
done
printf '127.0.0.1 localhost\n%s.2 app\n' "$net" >"$work/hosts"
touch "$root/etc/hosts" && mount --bind "$work/hosts" "$root/etc/hosts"
mount -o remount,bind,ro "$root"

ip netns exec app node examples/node-app/server.js --host 0.0.0.0 >"$work/app.log" &
# A published port is a process of the engine that listens on the host and connects to the container.
cat >"$work/publish.js" <<'JS'
const net = require('node:net');
const [, , port, to] = process.argv;
net.createServer((client) => {
  const server = net.connect(Number(port), to);
  for (const [a, b] of [[client, server], [server, client]]) a.on('error', () => b.destroy()).pipe(b);
}).listen(Number(port), '127.0.0.1');
JS
for pair in "8080 $net.3" "8081 $net.2"; do
  # shellcheck disable=SC2086
  node "$work/publish.js" $pair &
done
open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for _ in $(seq 150); do
  open 8080 && [ "$(code http://127.0.0.1:8081/count)" = 200 ] && break
  sleep 0.2
done

echo "# the image, by itself"
is "it exposes 8080" 8080 "${ports[*]}"
is "its files belong to root" "0 0" "$(stat -c %u "$root${entrypoint[0]}" "$root/etc/headwall/headwall.yaml" | xargs)"
if (contained headwall -- "${entrypoint[@]}" "${command[@]}") >"$work/run.log" 2>&1; then fail "it ran without a token"; fi
is "without HEADWALL_TOKEN it says so" 1 "$(grep -c HEADWALL_TOKEN "$work/run.log")"
if (contained headwall -- "${health[@]}" &>/dev/null); then fail "healthy without a server"; fi
token=$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')
contained headwall "HEADWALL_TOKEN=$token" -- "${entrypoint[@]}" "${command[@]}" >"$work/run.log" 2>&1 &
pid=$!
healthy headwall
is "it becomes healthy" 0 0
is "it runs as its user" "${user[0]%:*} ${user[0]#*:}" "$(stat -c '%u %g' "/proc/$pid")"
is "it has no capability" 0000000000000000 "$(sed -n 's/^CapEff:\t//p' "/proc/$pid/status")"
is "the app is behind it" "Hello World" "$(curl --silent http://127.0.0.1:8080/)"
is "the second answer is a hit" 1 "$(curl --silent --head --request GET http://127.0.0.1:8080/ | grep -ci '^cache-status: headwall; hit')"
is "the store refuses strangers" 401 "$(code -X PUT -d World http://127.0.0.1:8080/cache/hello)"
is "a wrong token too" 401 "$(code -X PUT -d World -H "Authorization: Bearer ${token}0" http://127.0.0.1:8080/cache/hello)"
is "the token opens it" 201 "$(code -X PUT -d World -H "Authorization: Bearer $token" http://127.0.0.1:8080/cache/hello)"
is "the operators' listener is not reachable" 000 "$(code "http://$net.3:9900/health")"
is "the access log is JSON on standard output" 200 \
  "$(sleep 1.5; sed -n 's/^{/{/p' "$work/run.log" | node -e 'const lines = require("fs").readFileSync(0, "utf8").trim().split("\n").map(JSON.parse); console.log(lines[0].status)')"
kill -s "${stop[0]#SIG}" "$pid"
wait "$pid" && status=0 || status=$?
is "its stop signal ends it well" 0 "$status"

echo "# docker-compose.yml"
mount --bind -o ro conf "$root/etc/headwall"
contained headwall "HEADWALL_GATEWAY=$net.1" -- "${entrypoint[@]}" run --config /etc/headwall/compose.yaml >"$work/run.log" 2>&1 &
pid=$!
healthy headwall
is "the app is behind it" "Hello World" "$(curl --silent http://127.0.0.1:8080/)"
is "it is a hit for whom nginx's users look for it" HIT "$(curl --silent --head --request GET http://127.0.0.1:8080/ | sed -n 's/^x-nginx-cache: \(.*\)\r/\1/Ip')"
is "the app itself takes a second" 1 "$(curl --silent --output /dev/null --write-out '%{time_total}' http://127.0.0.1:8081/ | cut -d. -f1)"
is "the host puts without a token" 201 "$(code -X PUT http://127.0.0.1:8080/cache/hello?ttl=10 -d World)"
is "and gets" World "$(curl --silent http://127.0.0.1:8080/cache/hello)"
is "events are not held back" 1 "$(curl --silent --no-buffer --max-time 0.8 http://127.0.0.1:8080/events | grep -c '^id: 1')"
for name in app other; do
  is "the container \`$name\` is refused" 403 "$(ip netns exec "$name" curl --silent --output /dev/null --write-out '%{http_code}' "http://$net.3:8080/cache/hello")"
  is "also when it claims to be the gateway" 403 \
    "$(ip netns exec "$name" curl --silent --output /dev/null --write-out '%{http_code}' -H "X-Forwarded-For: $net.1" -H "X-Real-IP: $net.1" "http://$net.3:8080/cache/hello")"
done
# A neighbour of the host that sends packets for a published port there (engines before 28 let them through).
ip netns add neighbour
ip link add vethn type veth peer name eth0 netns neighbour
ip address add 192.0.2.1/30 dev vethn && ip link set vethn up
ip -n neighbour address add 192.0.2.2/30 dev eth0 && ip -n neighbour link set eth0 up
ip -n neighbour route add "$net.0/28" via 192.0.2.1
echo 1 >/proc/sys/net/ipv4/ip_forward
is "a neighbour of the host is refused" 403 "$(ip netns exec neighbour curl --silent --max-time 5 --output /dev/null --write-out '%{http_code}' "http://$net.3:8080/cache/hello")"
kill -s "${stop[0]#SIG}" "$pid"
wait "$pid" && status=0 || status=$?
is "it ends well" 0 "$status"

echo "size of what the image adds to its base: $(du -ch --apparent-size "$root${entrypoint[0]}" "$work/etc-headwall" | tail -1 | cut -f1)"
echo "$number passed, 0 failed"
