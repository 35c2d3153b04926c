// Whether `headwall replay` predicts what Headwall does: the same requests, once through a running Headwall and once
// from its access log.
//
//   node benches/replay.js [target/release/headwall] [requests, 1000000]
//
// Starts an origin and the binary on loopback and free ports, sends the requests as fast as 32 connections allow, with a
// store that is too small for what is asked for, and compares what the metrics say with what is predicted from the JSON
// log, and from the same lines in `combined`. What the log does not know (Authorization) is not predicted. Takes two
// minutes and a gigabyte in the temporary folder.
'use strict';
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const readline = require('node:readline');

// How large a target's content is, from 200 bytes to 64 KiB, most of them small.
const size = (number) => Math.floor(200 * Math.pow(328, ((number * 2654435761) % 4294967296) / 4294967296));

if (process.argv[2] === 'origin') {
  const content = Buffer.alloc(1 << 17, 'x');
  let asked = 0;
  const server = http.createServer((request, response) => {
    if (request.url === '/asked') return response.end(String(asked));
    asked += 1;
    const [, kind, number] = /^\/(\w+)\/(\d+)/.exec(request.url) ?? [, 'none', 0];
    if (kind === 'news') response.setHeader('Cache-Control', 'max-age=5');
    if (kind === 'long') response.setHeader('Cache-Control', 'max-age=3600');
    if (kind === 'me') response.setHeader('Cache-Control', 'no-store');
    if (number % 97 === 5) response.statusCode = 404;
    response.setHeader('Content-Type', 'text/html; charset=utf-8');
    const length = request.method === 'POST' ? 2 : size(Number(number));
    response.setHeader('Content-Length', length);
    request.resume();
    response.end(content.subarray(0, length));
  });
  server.keepAliveTimeout = 60000;
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.stdin.on('end', () => process.exit(0)).resume();
  return;
}

const binary = process.argv[2] ?? path.join(__dirname, '../target/release/headwall');
const total = Number(process.argv[3] ?? 1000000);
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'headwall-replay-'));
const file = (name) => path.join(folder, name);
const children = [];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const freePort = () => new Promise((done) => {
  const server = net.createServer().listen(0, '127.0.0.1', () => { const { port } = server.address(); server.close(() => done(port)); });
});

const config = (port, admin, origin) => `threads: 2
listen: ["127.0.0.1:${port}"]
admin: { listen: "127.0.0.1:${admin}" }
log: { access: { file: "${file('access.json')}", format: json } }
cache: { memory: 96MiB, max_object: 1MiB, max_unsized: 1MiB }
upstreams: { app: { servers: ["127.0.0.1:${origin}"] } }
routes:
  - match: { prefix: /api }
    to: { proxy: app }
  - match: { prefix: /img }
    to: { proxy: app }
    cache: { mode: force, ttl: 4s }
  - match: { prefix: /page }
    to: { proxy: app }
    cache: { mode: force, ttl: { 200: 8s, 404: 1s }, key: { query: { drop: ["utm_*"] } } }
  - to: { proxy: app }
    cache: {}
`;

// A number from 0 to 1, the same ones in each run.
let state = 1;
const random = () => {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};

// Zipf, exponent 0.9.
const TARGETS = 40000;
const sums = new Float64Array(TARGETS);
for (let rank = 0, sum = 0; rank < TARGETS; rank += 1) { sum += 1 / Math.pow(rank + 1, 0.9); sums[rank] = sum; }
const rank = () => {
  const wanted = random() * sums[TARGETS - 1];
  let [low, high] = [0, TARGETS - 1];
  while (low < high) { const middle = (low + high) >> 1; if (sums[middle] < wanted) low = middle + 1; else high = middle; }
  return low;
};

function next() {
  const [what, number] = [random(), rank()];
  const kind = ['page', 'page', 'page', 'img', 'img', 'news', 'news', 'long', 'long', 'me', 'api'][number % 11];
  const target = `/${kind}/${number}${kind === 'page' && random() < 0.2 ? `?utm_source=${number % 7}` : ''}`;
  if (what < 0.004) return `POST ${target.split('?')[0]} HTTP/1.1\r\nHost: site.test\r\nContent-Length: 2\r\n\r\nhi`;
  if (what < 0.014) return `HEAD ${target} HTTP/1.1\r\nHost: site.test\r\n\r\n`;
  if (what < 0.02) return `GET ${target} HTTP/1.1\r\nHost: site.test\r\nAuthorization: Basic YTpi\r\n\r\n`;
  return `GET ${target} HTTP/1.1\r\nHost: site.test\r\nUser-Agent: bench\r\n\r\n`;
}

// One connection at a time: the next request when the response is whole. Headwall ends a connection after some
// thousand requests, and says so.
const drive = (port, counts) => new Promise((done, fail) => {
  const open = () => {
    const socket = net.connect(port, '127.0.0.1');
    socket.setNoDelay(true);
    let [head, left, bodiless, last] = ['', 0, false, false];
    const send = () => {
      if (counts.sent >= total) { socket.end(); return done(); }
      if (last) { socket.destroy(); return open(); }
      counts.sent += 1;
      const request = next();
      bodiless = request.startsWith('HEAD');
      socket.write(request);
    };
    socket.on('connect', send);
    socket.on('error', fail);
    socket.on('end', () => fail(new Error('the connection ended without a word')));
    socket.on('data', (data) => {
      let at = 0;
      while (at < data.length) {
        if (left > 0) {
          const taken = Math.min(left, data.length - at);
          left -= taken;
          at += taken;
        } else {
          const end = data.indexOf('\r\n\r\n', at);
          if (end < 0) { head += data.latin1Slice(at); return; }
          head += data.latin1Slice(at, end + 4);
          at = end + 4;
          left = bodiless ? 0 : Number(/content-length: (\d+)/i.exec(head)?.[1] ?? NaN);
          last = /connection: close/i.test(head);
          if (Number.isNaN(left)) return fail(new Error(head));
          head = '';
        }
        if (left === 0) send();
      }
    });
  };
  open();
});

const get = async (url) => (await fetch(url)).text();

async function really() {
  const app = spawn(process.execPath, [__filename, 'origin'], { stdio: ['pipe', 'pipe', 'inherit'] });
  children.push(app);
  const origin = Number(await new Promise((done) => app.stdout.once('data', done)));
  const [port, admin] = [await freePort(), await freePort()];
  fs.writeFileSync(file('bench.yaml'), config(port, admin, origin));
  const proxy = spawn(binary, ['run', '--config', file('bench.yaml')], { stdio: ['ignore', 'ignore', 'inherit'] });
  children.push(proxy);
  for (;;) {
    if (proxy.exitCode !== null) throw new Error(`${binary} ended with ${proxy.exitCode}`);
    try { await get(`http://127.0.0.1:${admin}/health`); break; } catch { await sleep(20); }
  }
  const counts = { sent: 0 };
  const started = Date.now();
  const watch = setInterval(() => process.stderr.write(`\r${counts.sent} requests `), 500);
  await Promise.all(Array.from({ length: 32 }, () => drive(port, counts)));
  clearInterval(watch);
  process.stderr.write('\r\x1b[K');
  const seconds = (Date.now() - started) / 1000;
  const metrics = await get(`http://127.0.0.1:${admin}/metrics`);
  const asked = Number(await get(`http://127.0.0.1:${origin}/asked`));
  const number = (name) => Number(new RegExp(`^${name} (\\d+)`, 'm').exec(metrics)?.[1] ?? NaN);
  const words = {};
  for (const [, word, count] of metrics.matchAll(/headwall_requests_total\{cache="([\w-]+)"[^}]*\} (\d+)/g)) words[word] = (words[word] ?? 0) + Number(count);
  const over = new Promise((done) => proxy.once('exit', done));
  proxy.kill('SIGTERM');
  await over;
  const dropped = number('headwall_log_dropped_total');
  if (dropped) throw new Error(`the log lost ${dropped} lines`);
  return {
    seconds,
    origin: asked,
    evicted: number('headwall_cache_evicted'),
    entries: number('headwall_cache_entries'),
    hit: words.hit ?? 0,
    collapsed: words.collapsed ?? 0,
    miss: (words['uri-miss'] ?? 0) + (words['vary-miss'] ?? 0) + (words.partial ?? 0),
    stale: words.stale ?? 0,
    bypass: (words.bypass ?? 0) + (words.method ?? 0) + (words.request ?? 0),
    none: words.none ?? 0,
  };
}

// The same lines as the `combined` format has them.
async function combined() {
  const months = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
  const out = fs.createWriteStream(file('access.log'));
  for await (const text of readline.createInterface({ input: fs.createReadStream(file('access.json')) })) {
    const line = JSON.parse(text);
    const [date, time] = line.time.split('T');
    const [year, month, day] = date.split('-');
    const when = `${day}/${months[month - 1]}/${year}:${time.slice(0, 8)} +0000`;
    const written = `127.0.0.1 - - [${when}] "${line.method} ${line.target} HTTP/1.1" ${line.status} ${line.bytes} "-" "${line.user_agent || '-'}"\n`;
    if (!out.write(written)) await new Promise((done) => out.once('drain', done));
  }
  await new Promise((done) => out.end(done));
}

function predicted(log) {
  const fresh = ['/news/=5s', '/long/=1h'].flatMap((value) => ['--fresh', value]);
  const started = Date.now();
  const child = spawnSync(binary, ['replay', '--config', file('bench.yaml'), '--host', 'site.test', ...fresh, '--json', file(log)], { encoding: 'utf8', maxBuffer: 1 << 26 });
  if (child.status !== 0) throw new Error(child.stderr);
  const seconds = (Date.now() - started) / 1000;
  const [result] = JSON.parse(child.stdout).results;
  const { hit, collapsed, miss, stale, validated, bypass, none } = result.cache;
  return { seconds, origin: result.origin_requests, evicted: result.evicted, entries: result.stored.entries, hit, collapsed, miss, stale: stale + validated, bypass, none };
}

(async () => {
  const real = await really();
  await combined();
  const ratio = (counts) => (100 * (counts.hit + counts.collapsed)) / total;
  const row = (name, counts) => console.log([name.padEnd(22), `${ratio(counts).toFixed(2)} %`, ...['hit', 'collapsed', 'miss', 'stale', 'bypass', 'none', 'origin', 'evicted', 'entries'].map((key) => String(counts[key])), counts.seconds.toFixed(1)].map((cell) => cell.padStart(10)).join(' '));
  console.log(['', 'hit ratio', 'hit', 'collapsed', 'miss', 'stale', 'bypass', 'none', 'origin', 'evicted', 'entries', 'seconds'].map((cell, at) => (at ? cell.padStart(10) : cell.padEnd(22))).join(' '));
  row('Headwall', real);
  for (const log of ['access.json', 'access.log']) {
    const counts = predicted(log);
    row(`replay of ${log}`, counts);
    const off = ratio(counts) - ratio(real);
    console.log(`  off by ${off.toFixed(2)} points, ${((counts.origin * 100) / real.origin - 100).toFixed(2)} % of the origin's requests; ${Math.round(total / counts.seconds)} lines a second`);
    if (Math.abs(off) > 1) process.exitCode = 1;
  }
})().finally(() => {
  children.forEach((child) => child.kill());
  if (!process.env.KEEP) fs.rmSync(folder, { recursive: true });
  else console.log(folder);
});
