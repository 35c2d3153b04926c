#!/usr/bin/env bash
# A slow Node app and Headwall before it; Ctrl-C ends both.
set -euo pipefail
cd "$(dirname "$0")/.."
PORT=${PORT:-8080}
APP_PORT=${APP_PORT:-8081}

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for port in "$PORT" "$APP_PORT"; do
  if taken "$port"; then
    echo "port $port is taken; choose others: make demo PORT=9080 APP_PORT=9081" >&2
    exit 3
  fi
done

echo "building Headwall (the first time takes a few minutes) ..."
cargo build --locked --release

app=
proxy=
end() {
  trap - EXIT INT TERM
  [ -z "$proxy" ] || kill "$proxy" 2>/dev/null || true
  [ -z "$app" ] || kill "$app" 2>/dev/null || true
  wait 2>/dev/null || true
}
trap end EXIT
trap 'end; exit 0' INT TERM

node examples/node-app/server.js --port "$APP_PORT" &
app=$!
./target/release/headwall run --to "127.0.0.1:$APP_PORT" --listen "127.0.0.1:$PORT" &
proxy=$!
for _ in $(seq 100); do
  taken "$PORT" && taken "$APP_PORT" && break
  kill -0 "$app" 2>/dev/null || { echo "the app did not start" >&2; exit 1; }
  kill -0 "$proxy" 2>/dev/null || { echo "Headwall did not start" >&2; exit 1; }
  sleep 0.1
done

cat <<TEXT

  the app, a second a page      http://127.0.0.1:$APP_PORT/
  Headwall before it            http://127.0.0.1:$PORT/
  events, as they happen        http://127.0.0.1:$PORT/events
  100 MiB, streamed             http://127.0.0.1:$PORT/large
  the key/value store           http://127.0.0.1:$PORT/cache/KEY

Try, twice each:

  curl -w '%{time_total}s\n' -sD- http://127.0.0.1:$PORT/
  curl -N http://127.0.0.1:$PORT/events
  curl -X PUT -H 'Content-Type: text/plain' -d World 'http://127.0.0.1:$PORT/cache/Hello?ttl=60' && curl http://127.0.0.1:$PORT/cache/Hello

Ctrl-C ends both.
TEXT
wait -n "$app" "$proxy"
