// What the tests do not assert because a busy machine would break it: delays and resident memory.
//
//   node benches/measure.js [target/release/headwall]
//
// Starts the origin of the end-to-end tests and the binary, on loopback and free ports, and prints a
// line for each figure. Takes about ten minutes.
'use strict';
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const zlib = require('node:zlib');
const root = path.join(__dirname, '..');
const binary = process.argv[2] ?? path.join(root, 'target/release/headwall');
const children = [];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const MiB = 1 << 20;

const freePort = () => new Promise((done) => {
  const server = net.createServer().listen(0, '127.0.0.1', () => { const { port } = server.address(); server.close(() => done(port)); });
});

async function origin() {
  const child = spawn('node', [path.join(root, 'tests/e2e/origin.js')], { stdio: ['pipe', 'pipe', 'inherit'] });
  children.push(child);
  return JSON.parse(await new Promise((done) => child.stdout.once('data', done)));
}

async function headwall(yaml) {
  const port = await freePort();
  const file = path.join(os.tmpdir(), `headwall-measure-${port}.yaml`);
  fs.writeFileSync(file, `threads: 2\nlisten: ["127.0.0.1:${port}"]\n${yaml}`);
  const child = spawn(binary, ['run', '--config', file], { stdio: ['ignore', 'ignore', 'ignore'] });
  children.push(child);
  for (;;) {
    try { await connect(port).then((socket) => socket.destroy()); break; } catch { await sleep(20); }
  }
  fs.unlinkSync(file);
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1]) * 1024;
  return { port, memory, stop: () => child.kill() };
}

const connect = (port) => new Promise((done, fail) => {
  const socket = net.connect(port, '127.0.0.1', () => done(socket));
  socket.once('error', fail);
});

// One request whose content is read at `rate` bytes a second; counts what came.
async function read(port, target, { rate = Infinity, fields = '' } = {}) {
  const socket = await connect(port);
  const reader = { socket, bytes: 0, done: false, first: 0, started: Date.now() };
  reader.ended = new Promise((end) => socket.once('close', () => { reader.done = true; end(); }));
  socket.on('error', () => {});
  if (rate !== Infinity) socket.pause();
  socket.write(`GET ${target} HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n${fields}\r\n`);
  if (rate === Infinity) {
    socket.on('data', (data) => { reader.first ||= Date.now(); reader.bytes += data.length; });
  } else {
    const timer = setInterval(() => {
      let budget = rate / 10;
      while (budget > 0) {
        const data = socket.read(Math.min(budget, socket.readableLength || budget)) ?? null;
        if (!data) break;
        reader.bytes += data.length;
        budget -= data.length;
      }
    }, 100);
    socket.on('readable', () => {});
    socket.once('close', () => clearInterval(timer));
  }
  return reader;
}

const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
const say = (what, figure) => console.log(`${what.padEnd(72)} ${figure}`);

async function events(app) {
  for (const [name, routes] of [['plain route', 'routes: [{ to: { proxy: app } }]'], ['cached route', 'routes: [{ to: { proxy: app }, cache: {} }]']]) {
    const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\n${routes}`);
    const worst = [];
    for (let round = 0; round < 5; round += 1) {
      const delays = [];
      const socket = await connect(proxy.port);
      socket.write('GET /events?every=50 HTTP/1.1\r\nHost: a\r\n\r\n');
      socket.on('data', (data) => {
        for (const match of data.toString().matchAll(/data: (\d+)/g)) delays.push(Date.now() - Number(match[1]));
      });
      await sleep(1500);
      socket.destroy();
      worst.push(Math.max(...delays));
    }
    say(`event from app to client, ${name}: slowest of 30, median of 5 runs`, `${median(worst)} ms`);
    proxy.stop();
  }
}

// A decoder for a coding. Node 20 has no zstd, so that one is read as the tests read it.
const decoders = { gzip: () => zlib.createGunzip({ flush: zlib.constants.Z_SYNC_FLUSH }), br: () => zlib.createBrotliDecompress() };

async function compressedEvents(app) {
  const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {}, plugins: [{ compress: }] }]`);
  for (const coding of ['gzip', 'br']) {
    const worst = [];
    for (let round = 0; round < 5; round += 1) {
      const delays = [];
      const request = http.get({ port: proxy.port, path: '/events?every=50', headers: { 'Accept-Encoding': coding }, agent: false }, (response) => {
        if (response.headers['content-encoding'] !== coding) throw new Error('not compressed');
        response.pipe(decoders[coding]()).on('data', (data) => {
          for (const match of data.toString().matchAll(/data: (\d+)/g)) delays.push(Date.now() - Number(match[1]));
        }).on('error', () => {});
      });
      request.on('error', () => {});
      await sleep(1600);
      request.destroy();
      if (delays.length < 25) say(`  ${coding}: only ${delays.length} events`, '');
      worst.push(Math.max(...delays));
    }
    say(`event from app to client, ${coding}: slowest of 30, median of 5 runs`, `${median(worst)} ms`);
  }
  proxy.stop();
}

// What a compressed stream costs, beside one that is not.
async function compressedStreams(app) {
  for (const coding of ['identity', 'gzip', 'br', 'zstd']) {
    const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, plugins: [{ compress: }] }]`);
    await (await read(proxy.port, '/warm')).ended;
    const before = proxy.memory();
    const readers = await Promise.all(Array.from({ length: 500 }, () => read(proxy.port, '/events?every=500', { fields: `Accept-Encoding: ${coding}\r\n` })));
    await sleep(3000);
    say(`500 event streams, ${coding}: memory for each`, `${((proxy.memory() - before) / 500 / 1024).toFixed(0)} KiB`);
    readers.forEach((reader) => reader.socket.destroy());
    proxy.stop();
  }
}

async function slowReader(app) {
  for (const [name, query] of [
    ['no-store', 'sized=1&h.Cache-Control=no-store'],
    ['chunked, cacheable', 'h.Cache-Control=max-age=60'],
    ['Content-Length above max_object, cacheable', 'sized=1&h.Cache-Control=max-age=60'],
  ]) {
    const grown = [];
    for (let round = 0; round < 5; round += 1) {
      const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
      await (await read(proxy.port, '/warm')).ended;
      const before = proxy.memory();
      const reader = await read(proxy.port, `/bytes?size=${1024 * MiB}&${query}&n=${round}`, { rate: MiB });
      let peak = 0;
      for (let tick = 0; tick < 100; tick += 1) { await sleep(100); peak = Math.max(peak, proxy.memory()); }
      grown.push(peak - before);
      reader.socket.destroy();
      proxy.stop();
    }
    say(`1 GiB at 1 MiB/s, ${name}: memory grown, median of 5`, `${(median(grown) / MiB).toFixed(1)} MiB`);
  }
}

async function hundredSlowReaders(app) {
  for (const [name, query] of [['no-store', 'sized=1&h.Cache-Control=no-store'], ['chunked, cacheable', 'h.Cache-Control=max-age=60']]) {
    const grown = [];
    for (let round = 0; round < 5; round += 1) {
      const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
      await (await read(proxy.port, '/warm')).ended;
      const before = proxy.memory();
      const readers = await Promise.all(Array.from({ length: 100 }, (_, n) => read(proxy.port, `/bytes?size=${50 * MiB}&${query}&n=${round}-${n}`, { rate: 64 << 10 })));
      let peak = 0;
      for (let tick = 0; tick < 50; tick += 1) { await sleep(100); peak = Math.max(peak, proxy.memory()); }
      grown.push(peak - before);
      readers.forEach((reader) => reader.socket.destroy());
      proxy.stop();
    }
    say(`100 slow readers of 50 MiB each, ${name}: memory grown, median of 5`, `${(median(grown) / MiB).toFixed(1)} MiB`);
  }
}

async function joiners(app) {
  const size = 12 * MiB;
  for (const [name, query] of [['Content-Length', 'sized=1'], ['chunked', 'x=1']]) {
    const took = [];
    for (let round = 0; round < 5; round += 1) {
      const proxy = await headwall(`cache: { max_unsized: 16MiB }\nupstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
      const target = `/bytes?size=${size}&${query}&wait=300&h.Cache-Control=max-age=60&n=${round}`;
      const leader = await read(proxy.port, target, { rate: 1024 });
      await sleep(100);
      const started = Date.now();
      const others = await Promise.all(Array.from({ length: 199 }, () => read(proxy.port, target)));
      await Promise.all(others.map((reader) => reader.ended));
      took.push(Date.now() - started);
      const whole = others.filter((reader) => reader.bytes > size).length;
      if (whole !== 199) say(`  ${name}: only ${whole} of 199 joiners got everything`, '');
      leader.socket.destroy();
      proxy.stop();
    }
    say(`199 joiners of 12 MiB behind a leader at 1 KiB/s, ${name}, median of 5`, `${median(took)} ms for all`);
  }
}

async function cold(app) {
  const took = [];
  for (let round = 0; round < 5; round += 1) {
    const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
    const target = `/page?wait=1000&h.Cache-Control=max-age=60&n=cold${round}`;
    const started = Date.now();
    const readers = await Promise.all(Array.from({ length: 200 }, () => read(proxy.port, target)));
    await Promise.all(readers.map((reader) => reader.ended));
    took.push(Date.now() - started);
    proxy.stop();
  }
  const log = await (await fetch(`http://127.0.0.1:${app.control}/__log`)).json();
  say('200 clients on one cold page of 1 s, median of 5', `${median(took)} ms; ${log.filter((r) => r.url.includes('n=cold')).length / 5} request at the app`);
}

// All clients are there before the page is; each notes when its first content came, and the page says when it left.
async function firstBytes(app) {
  const worst = [];
  const trips = [];
  for (let round = 0; round < 5; round += 1) {
    const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
    const target = `/stamped?wait=300&h.Cache-Control=max-age=60&n=first${round}`;
    const late = await Promise.all(Array.from({ length: 200 }, async () => {
      const socket = await connect(proxy.port);
      socket.write(`GET ${target} HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n`);
      let text = '';
      return new Promise((done) => socket.on('data', (data) => {
        text += data;
        const stamp = /\r\n\r\n[0-9a-f]+\r\n(\d+)\n/.exec(text);
        if (stamp) { done(Date.now() - Number(stamp[1])); text = ''; }
      }));
    }));
    worst.push(Math.max(...late));
    proxy.stop();
    const log = await (await fetch(`http://127.0.0.1:${app.control}/__log`)).json();
    trips.push(log.filter((entry) => entry.url.includes(`n=first${round}`)).length);
  }
  say('200 clients on one cold page that streams for 1 s: the last first byte, median of 5', `${median(worst)} ms (${worst.join(', ')}); ${trips.join(', ')} requests at the app`);
}

// After one response has been seen, nobody waits for anybody else's.
async function uncacheable(app) {
  const slowest = [];
  for (let round = 0; round < 5; round += 1) {
    const proxy = await headwall(`upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
    const target = `/page?wait=1000&h.Cache-Control=no-store&n=own${round}`;
    await (await read(proxy.port, target)).ended;
    const readers = await Promise.all(Array.from({ length: 200 }, () => read(proxy.port, target)));
    await Promise.all(readers.map((reader) => reader.ended));
    slowest.push(Math.max(...readers.map((reader) => reader.first - reader.started)));
    proxy.stop();
  }
  say('200 clients on a page of 1 s that cannot be stored: the slowest, median of 5', `${median(slowest)} ms`);
}

// Ten GiB of responses that are never asked for twice, through a store of 64 MiB.
async function flood(app) {
  const proxy = await headwall(`cache: { memory: 64MiB }\nupstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
  const sizes = [4 << 10, 64 << 10, 256 << 10, 1 << 20];
  const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
  let [left, number, most] = [10 * 1024 * MiB, 0, 0];
  const watch = setInterval(() => { most = Math.max(most, proxy.memory()); }, 100);
  const one = (size, n) => new Promise((done, fail) => {
    const target = `/bytes?size=${size}&sized=${n % 2 ? 1 : ''}&h.Cache-Control=max-age=3600&n=${n}`;
    http.get({ port: proxy.port, path: target, agent }, (response) => {
      response.on('data', () => {}).on('end', done).on('error', fail);
    }).on('error', fail);
  });
  await Promise.all(Array.from({ length: 16 }, async () => {
    while (left > 0) {
      const size = sizes[(number += 1) % sizes.length];
      left -= size;
      if (number % 2000 === 0) process.stderr.write(`\r  ${((left / MiB / 1024)).toFixed(1)} GiB to go, ${(most / MiB).toFixed(0)} MiB held  `);
      await one(size, number);
    }
  }));
  process.stderr.write('\r');
  clearInterval(watch);
  say('64 MiB of store, fed 10 GiB of distinct responses: resident memory at most', `${(most / MiB).toFixed(1)} MiB (limit 144)`);
  proxy.stop();
}

// Twenty reloads at 1,000 requests a second, every fourth one of a broken file, an event stream open all the time.
async function reloads(app) {
  const port = await freePort();
  const file = path.join(os.tmpdir(), `headwall-measure-${port}.yaml`);
  const write = (number) => fs.writeFileSync(file, number % 4 === 3 ? 'routes: [\n' : `listen: ["127.0.0.1:${port}"]
upstreams: { app: { servers: ["127.0.0.1:${app.port}"] } }
plugins: [{ headers: { response: { set: { X-Number: "${number}" } } } }, { compress: }]
routes:
  - match: { prefix: /cache/ }
    to: { kv: {} }
  - to: { proxy: app }
    cache: {}
`);
  write(0);
  const child = spawn(binary, ['run', '--config', file], { stdio: ['ignore', 'ignore', 'ignore'] });
  children.push(child);
  for (;;) { try { (await connect(port)).destroy(); break; } catch { await sleep(20); } }
  const agent = new http.Agent({ keepAlive: true, maxSockets: 50 });
  const counts = { sent: 0, done: 0, failed: 0 };
  const numbers = new Set();
  const ask = () => {
    counts.sent += 1;
    const target = [`/page?say=x&h.Cache-Control=max-age=60&n=${counts.sent % 50}`, '/chunks?pieces=a%20b', '/cache/none'][counts.sent % 3];
    const request = http.get({ port, path: target, agent }, (response) => {
      numbers.add(response.headers['x-number']);
      response.on('data', () => {}).on('end', () => { counts.done += 1; if (response.statusCode >= 500) counts.failed += 1; });
      response.on('error', () => { counts.failed += 1; });
    });
    request.on('error', () => { counts.failed += 1; });
  };
  let last = Date.now();
  let gap = 0;
  const stream = await read(port, '/events?every=50');
  stream.socket.on('data', () => { gap = Math.max(gap, Date.now() - last); last = Date.now(); });
  const started = Date.now();
  const timer = setInterval(() => { while (counts.sent < Date.now() - started) ask(); }, 5);
  for (let number = 1; number <= 20; number += 1) {
    await sleep(400);
    write(number);
    child.kill('SIGHUP');
  }
  await sleep(1000);
  clearInterval(timer);
  await sleep(500);
  const seconds = (Date.now() - started - 500) / 1000;
  say(`20 reloads, every fourth broken: ${counts.sent} requests in ${seconds.toFixed(1)} s`, `${counts.failed} failed, ${counts.sent - counts.done - counts.failed} lost; ${numbers.size} configurations seen; stream ${stream.done ? 'broke' : `open, longest gap ${gap} ms`}`);
  agent.destroy();
  stream.socket.destroy();
  child.kill();
  fs.unlinkSync(file);
}

// One connection that asks for one target after the other, as fast as the answers come; all of them end with `ok`.
async function ask(port, next) {
  let socket = await connect(port);
  for (let target = next(); target; ) {
    const sent = process.hrtime.bigint();
    socket.write(`GET ${target} HTTP/1.1\r\nHost: site.test\r\n\r\n`);
    const whole = await new Promise((done) => {
      let text = '';
      socket.removeAllListeners();
      socket.on('data', (data) => { text += data.latin1Slice(); if (text.endsWith('\r\n\r\nok')) done(true); });
      socket.on('close', () => done(false)).on('error', () => {});
    });
    // A connection has an end; what it did not answer is asked on the next one.
    if (whole) target = next(Number(process.hrtime.bigint() - sent) / 1e6);
    else socket = await connect(port);
  }
  socket.destroy();
}

// A million entries, each with one of ten tags; one client hits another page all the time while tag after tag is purged.
async function purge() {
  const server = net.createServer((socket) => {
    let rest = '';
    socket.setNoDelay(true).on('error', () => {}).on('data', (data) => {
      const heads = (rest + data.latin1Slice()).split('\r\n\r\n');
      rest = heads.pop();
      for (const head of heads) {
        const number = /^GET \/p(\d+)/.exec(head);
        socket.write(`HTTP/1.1 200 OK\r\nCache-Control: max-age=86400\r\n${number ? `Cache-Tag: t${number[1] % 10}\r\n` : ''}Content-Length: 2\r\n\r\nok`);
      }
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const admin = await freePort();
  const proxy = await headwall(`admin: { listen: "127.0.0.1:${admin}" }\ncache: { memory: 8GiB }\nupstreams: { app: { servers: ["127.0.0.1:${server.address().port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]`);
  const purging = async (what) => {
    const content = JSON.stringify(what);
    const socket = await connect(admin);
    const started = process.hrtime.bigint();
    socket.write(`POST /purge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${content.length}\r\n\r\n${content}`);
    let text = '';
    await new Promise((done) => socket.on('data', (data) => { text += data; if (text.endsWith('}\n')) done(); }));
    const took = Number(process.hrtime.bigint() - started) / 1e6;
    socket.destroy();
    return { ...JSON.parse(text.slice(text.indexOf('\r\n\r\n'))), took };
  };
  const empty = proxy.memory();
  const total = Number(process.env.ENTRIES ?? 1_000_000);
  let number = 0;
  await Promise.all(Array.from({ length: 16 }, () => ask(proxy.port, () => {
    if (number === total) return null;
    if (number % 50000 === 0) process.stderr.write(`\r  ${number} of ${total} entries  `);
    return `/p${number++}`;
  })));
  process.stderr.write('\r');
  await sleep(12000);
  const counted = (await purging({ all: true, dry_run: true })).bytes;
  const before = proxy.memory();
  say(`${total} entries of two bytes each: counted, and resident`, `${(counted / MiB).toFixed(0)} MiB, ${((before - empty) / MiB).toFixed(0)} MiB`);
  let [times, over] = [[], false];
  const hits = ask(proxy.port, (took) => { if (took) times.push(took); return over ? null : '/hot'; });
  const taken = () => { const all = times.sort((a, b) => a - b); times = []; return all; };
  const at = (list, share) => list[Math.min(list.length - 1, Math.floor(list.length * share))];
  await sleep(2000);
  const nothing = [];
  for (let round = 0; round < 21; round += 1) nothing.push((await purging({ tag: `none${round}` })).took);
  say('a purge by a tag that nothing has, median of 21 (and the slowest)', `${median(nothing).toFixed(2)} ms (${Math.max(...nothing).toFixed(2)} ms)`);
  let [quiet, meanwhile, took] = [[], [], []];
  for (let tag = 0; tag < 10; tag += 1) {
    taken();
    await sleep(500);
    quiet = quiet.concat(taken());
    const purged = await purging({ tag: `t${tag}` });
    meanwhile = meanwhile.concat(taken());
    took.push(purged.took);
    if (tag === 0) {
      await sleep(10000);
      say(`resident 10 s after ${purged.entries} of them were purged`, `${(100 * (proxy.memory() - empty) / (before - empty)).toFixed(0)} % of before`);
    }
  }
  over = true;
  await hits;
  const sorted = (list) => list.sort((a, b) => a - b);
  say(`a purge of ${total / 10} entries by tag, each of ten`, `${took.map((ms) => ms.toFixed(0)).join(', ')} ms`);
  for (const [name, list] of [['quiet', sorted(quiet)], ['meanwhile', sorted(meanwhile)]]) {
    say(`hits of one client, ${name}: p50, p99, p99.9, slowest of ${list.length}`, `${[0.5, 0.99, 0.999, 1].map((share) => at(list, share).toFixed(3)).join(', ')} ms`);
  }
  proxy.stop();
  server.close();
}

(async () => {
  const only = process.argv[3];
  const app = await origin();
  for (const measure of [events, compressedEvents, compressedStreams, cold, firstBytes, uncacheable, slowReader, hundredSlowReaders, joiners, reloads, purge, flood]) {
    if (!only || measure.name === only) await measure(app);
  }
})().finally(() => children.forEach((child) => child.kill()));
