// What the tests do not assert because a busy machine would break it: delays and resident memory.
//
//   node benches/measure.js [target/release/headwall]
//
// Starts the origin of the end-to-end tests and the binary, on loopback and free ports, and prints a
// line for each figure. Takes about five minutes.
'use strict';
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
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

(async () => {
  const only = process.argv[3];
  const app = await origin();
  for (const measure of [events, cold, slowReader, hundredSlowReaders, joiners]) {
    if (!only || measure.name === only) await measure(app);
  }
})().finally(() => children.forEach((child) => child.kill()));
