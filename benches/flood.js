// A client that sends what is new each time, as fast as it can: keys, hosts, variants, tags, parts, values. Beside it one that
// asks for the same page and the same value all along.
//
//   node benches/flood.js [target/release/headwall] [minutes, 5]
//
// The store has 64 MiB and the key/value store too. Exits with 1 when the process came to hold more than 1.25 times these two
// and 64 MiB, or when the second client got anything but a hit.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { get, headwall, node, sleep } = require('./loopback');

const MIB = 1 << 20;
const BUDGET = 64;
const MOST = 1.25 * 2 * BUDGET + 64;
const CLIENTS = 24;
const ORIGIN = 'origin';

// The app: what a response is like stands in its query.
function origin() {
  const file = Buffer.alloc(8 * MIB, 'f');
  const server = http.createServer((request, response) => {
    const url = new URL(request.url, 'http://app');
    const size = Number(url.searchParams.get('size') ?? 500);
    const fields = { 'Content-Type': 'text/plain', 'Cache-Control': 'max-age=600', ETag: '"1"' };
    if (url.searchParams.has('vary')) fields.Vary = 'X-Variant';
    if (url.searchParams.has('tags')) fields['Cache-Tag'] = url.searchParams.get('tags');
    if (url.searchParams.has('search')) fields['No-Vary-Search'] = 'params=("utm")';
    if (url.searchParams.has('private')) fields['Cache-Control'] = 'private';
    if (request.method === 'POST') { request.resume(); fields['Cache-Control'] = 'no-store'; }
    if (url.pathname.startsWith('/file')) {
      const [, first, last] = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? '') ?? [0, 0, file.length - 1];
      const end = Math.min(Number(last), file.length - 1);
      response.writeHead(206, { ...fields, 'Content-Range': `bytes ${first}-${end}/${file.length}`, 'Content-Length': end - first + 1 });
      return response.end(file.subarray(Number(first), end + 1));
    }
    response.writeHead(200, { ...fields, 'Content-Length': size });
    response.end(request.method === 'HEAD' ? '' : Buffer.alloc(size, 'x'));
  });
  server.keepAliveTimeout = 60000;
  server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
  process.stdin.on('end', () => process.exit()).resume();
}

let number = 0;
const fresh = () => `${(number += 1).toString(36)}-${'k'.repeat(number % 200)}`;
const tags = () => Array.from({ length: number % 12 }, (_, at) => `tag-${number}-${at}`).join(',');

// What the flood is made of.
const KINDS = {
  keys: () => ({ path: `/page/${fresh()}?size=${(number * 37) % 20000}` }),
  small: () => ({ path: `/page/${fresh()}?size=1` }),
  large: () => ({ path: `/page/${fresh()}?size=${number % 10 === 0 ? 3 * MIB : 50000}` }),
  hosts: () => ({ path: '/page?size=100', headers: { Host: `${fresh()}.test` } }),
  variants: () => ({ path: `/page/${number % 50}?vary&size=2000`, headers: { 'X-Variant': fresh() } }),
  tags: () => ({ path: `/page/${fresh()}?size=200&tags=${tags()}` }),
  targets: () => ({ path: `/page/${fresh()}${'t'.repeat(3000)}?size=10` }),
  parts: () => ({ path: `/file/${number % 400}/${fresh()}`, headers: { Range: `bytes=${(number * 4099) % (7 * MIB)}-${((number * 4099) % (7 * MIB)) + 20000}` } }),
  slices: () => ({ path: `/file/sliced/${fresh()}`, headers: { Range: `bytes=${(number * 4099) % (7 * MIB)}-${((number * 4099) % (7 * MIB)) + 100}` } }),
  uncacheable: () => ({ path: `/page/${fresh()}?private` }),
  invalidations: () => ({ method: 'POST', path: `/page/${fresh()}` }),
  searches: () => ({ path: `/page/${fresh()}?search&utm=${number}` }),
  values: () => ({ method: 'PUT', path: `/cache/${fresh()}?ttl=600`, content: Buffer.alloc((number * 131) % 30000, 'v') }),
  tagged: () => ({ method: 'PUT', path: `/cache/${fresh()}`, headers: { 'Cache-Tag': tags() || 'none' }, content: 'v' }),
};

function ask(agent, port, { method = 'GET', path: target, headers = {}, content = '' }) {
  return new Promise((done) => {
    const fields = method === 'GET' ? headers : { ...headers, 'Content-Length': content.length };
    const request = http.request({ agent, port, method, path: target, headers: fields }, (response) => {
      const text = [];
      response.on('data', (data) => text.push(data)).on('end', () => done({ status: response.statusCode, fields: response.headers, text })).on('error', () => done({ status: 0 }));
    });
    request.on('error', () => done({ status: 0 })).end(content);
  });
}

async function main() {
  const binary = process.argv[2] ?? path.join(__dirname, '../target/release/headwall');
  const minutes = Number(process.argv[3] ?? 5);
  const only = process.argv[4]?.split(',') ?? Object.keys(KINDS);
  const app = await node(__filename, ORIGIN);
  const server = await headwall(binary, `cache: { memory: ${BUDGET}MiB, max_object: 8MiB, fills: 16MiB }
upstreams:
  app: { servers: ["127.0.0.1:${app.port}"] }
routes:
  - match: { prefix: /cache/ }
    to: { kv: { memory: ${BUDGET}MiB } }
  - match: { prefix: /file/sliced/ }
    to: { proxy: app }
    cache: { slice: 1MiB }
  - to: { proxy: app }
    cache: {}
`);
  const end = Date.now() + minutes * 60000;
  const agent = new http.Agent({ keepAlive: true, maxSockets: CLIENTS });
  let sent = 0;
  const failed = {};
  const flood = async (client) => {
    for (let turn = client; Date.now() < end; turn += 1) {
      const kind = only[turn % only.length];
      const { status } = await ask(agent, server.port, KINDS[kind]());
      sent += 1;
      if (status === 0 || status >= 400) failed[`${kind} ${status}`] = (failed[`${kind} ${status}`] ?? 0) + 1;
    }
  };
  const second = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const hot = { asked: 0, missed: 0, wrong: 0, gap: 0, last: Date.now() };
  await ask(second, server.port, { path: '/hot?size=1000' });
  await ask(second, server.port, { method: 'PUT', path: '/cache/hot', content: 'hot' });
  const steady = async () => {
    while (Date.now() < end) {
      const page = await ask(second, server.port, { path: '/hot?size=1000' });
      const value = await ask(second, server.port, { path: '/cache/hot' });
      hot.asked += 1;
      if (page.status !== 200 || Buffer.concat(page.text).length !== 1000 || value.status !== 200 || Buffer.concat(value.text).toString() !== 'hot') hot.wrong += 1;
      else if (!/; hit/.test(page.fields['cache-status'])) hot.missed += 1;
      else { hot.gap = Math.max(hot.gap, Date.now() - hot.last); hot.last = Date.now(); }
      await sleep(5);
    }
  };
  let peak = 0;
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${server.child.pid}/status`, 'utf8'))[1]) / 1024;
  const watch = async () => {
    for (let second = 1; Date.now() < end; second += 1) {
      await sleep(1000);
      peak = Math.max(peak, memory());
      if (second % 10 !== 0) continue;
      const text = await get(server.admin, '/metrics');
      const metric = (name) => Number(new RegExp(`^headwall_${name} (\\S+)$`, 'm').exec(text)?.[1] ?? NaN);
      const mib = (bytes) => (bytes / MIB).toFixed(1).padStart(6);
      console.log(`${String(second).padStart(4)} s ${memory().toFixed(1).padStart(7)} MiB resident, stored${mib(metric('cache_bytes'))} in ${metric('cache_entries')}, values${mib(metric('kv_bytes'))} in ${metric('kv_entries')}, fills${mib(metric('fill_bytes'))}, ${sent} requests, ${hot.asked} hot, ${hot.missed} missed`);
    }
  };
  await Promise.all([watch(), steady(), ...Array.from({ length: CLIENTS }, (_, client) => flood(client))]);
  const held = peak <= MOST && hot.wrong === 0 && hot.missed === 0 && hot.asked > 0;
  console.log(`\n${sent} requests of ${only.length} kinds${Object.keys(failed).length ? `, not answered well: ${JSON.stringify(failed)}` : ''}`);
  console.log(`at most ${peak.toFixed(1)} MiB of ${MOST}; the second client asked ${hot.asked} times, missed ${hot.missed}, got ${hot.wrong} wrong, waited ${hot.gap} ms at most`);
  console.log(held ? 'held' : 'NOT HELD');
  process.exit(held ? 0 : 1);
}

if (process.argv[2] === ORIGIN) origin(); else main();
