#!/usr/bin/env bash
# The seed's measurement, side by side in one run: a slow Node app (1 s a page) directly, through
# Headwall, and through nginx where it is installed. `ab -n 1000 -c 10` on a cold cache; directly
# only 20 requests, because each takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
chmod 755 "$folder" # nginx works as another user
pids=()
end() { for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait 2>/dev/null || true; rm -rf "$folder"; }
trap end EXIT

free() { node -e 'const s=require("net").createServer().listen(0,"127.0.0.1",()=>{console.log(s.address().port);s.close()})'; }
up() { for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1; done; echo "port $1 did not open" >&2; exit 1; }

app=$(free)
node examples/node-app/server.js --port "$app" >/dev/null & pids+=($!)
up "$app"

row() { # name, port, requests, flags
  local before after
  before=$(curl -s "http://127.0.0.1:$app/count")
  ab -q ${4:-} -n "$3" -c 10 "http://127.0.0.1:$2/$5" >"$folder/ab" 2>&1
  after=$(curl -s "http://127.0.0.1:$app/count")
  printf '%-28s %8s requests %10s s %12s/s   app saw %s\n' "$1" "$3" \
    "$(awk '/Time taken/ {print $5}' "$folder/ab")" "$(awk '/Requests per second/ {print $4}' "$folder/ab")" $((after - before))
  awk '/Failed requests/ && $3 > 0 {print "  failed: " $3; exit 1}' "$folder/ab"
}

headwall=$(free)
sed -e "s/127.0.0.1:8080/127.0.0.1:$headwall/; s/127.0.0.1:8081/127.0.0.1:$app/" conf/nginx-cache.yaml >"$folder/headwall.yaml"
./target/release/headwall run --config "$folder/headwall.yaml" 2>/dev/null & pids+=($!)
up "$headwall"

row "direct" "$app" 20 "" "direct"
for round in 1 2 3 4 5; do
  row "headwall, cold, round $round" "$headwall" 1000 "" "a$round"
  row "headwall, cold, keep-alive" "$headwall" 1000 -k "k$round"
done
row "headwall, warm, keep-alive" "$headwall" 50000 -k "k1"

if command -v nginx >/dev/null; then
  port=$(free)
  cat >"$folder/nginx.conf" <<CONF
worker_processes auto; pid $folder/nginx.pid; error_log $folder/error.log; daemon off;
events {}
http {
  access_log off; proxy_temp_path $folder/temp; client_body_temp_path $folder/body; fastcgi_temp_path $folder/f; uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;
  proxy_cache_path $folder/cache keys_zone=c:10m;
  server {
    listen 127.0.0.1:$port;
    location / {
      proxy_pass http://127.0.0.1:$app; proxy_cache c; proxy_cache_valid any 1m; proxy_cache_lock on;
      proxy_ignore_headers Cache-Control Expires; add_header X-Nginx-Cache \$upstream_cache_status;
    }
  }
}
CONF
  nginx -p "$folder" -c "$folder/nginx.conf" 2>/dev/null & pids+=($!)
  up "$port"
  row "nginx, cold" "$port" 1000 "" "n1"
  row "nginx, cold, keep-alive" "$port" 1000 -k "n2"
  row "nginx, warm, keep-alive" "$port" 50000 -k "n2"
else
  echo "nginx is not installed; its rows are left out"
fi
