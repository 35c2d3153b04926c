// Minutes of everything at once through a running Headwall, with an origin of which three answers in ten go wrong.
//
//   node benches/soak/soak.js [target/release/headwall] [minutes, 10]
//
// Clients ask for pages, parts, streams and values, upload, purge and leave; each answer says for whom it is and is compared
// byte by byte. The file is reloaded every 20 s, a broken one now and then, and the log moved away. Exits with 1 when an
// answer was wrong, an upload sent twice, something panicked or a request hung, when memory grew in the second half, or
// when connections, tasks, fills, threads or descriptors are left over at the end.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { folder, get, headwall, node, sleep } = require('../loopback');
const { Load } = require('./load');

const binary = process.argv[2] ?? path.join(__dirname, '../../target/release/headwall');
const minutes = Number(process.argv[3] ?? 10);
const CLIENTS = 64;
const FAULTS = 0.3;
// Memory may grow so much in the second half: what an allocator keeps moves up and down by more than nothing.
const GROWTH = 4; // MiB
const log = path.join(folder, 'access.log');

const config = (origin, number) => (number % 4 === 3 ? 'routes: [\n' : `log: { access: { file: "${log}", format: json } }
cache: { memory: 32MiB, max_object: 2MiB, fills: 16MiB }
upstreams:
  app: { servers: ["127.0.0.1:${origin}"], timeouts: { connect: 1s, first_byte: 1s, read: 1s, idle: 2s } }
plugins: [{ headers: { response: { set: { X-Number: "${number}" } } } }]
routes:
  - match: { prefix: /cache/ }
    to: { kv: { memory: 8MiB, max_value: 1MiB } }
  - match: { prefix: /plain }
    to: { proxy: app }
  - match: { prefix: /force }
    to: { proxy: app }
    cache: { mode: force, ttl: { 200: ${2 + (number % 2)}s } }
  - match: { prefix: /file }
    to: { proxy: app }
    cache: { slice: 64KiB }
  - to: { proxy: app }
    cache: {}
`);

const purge = (admin, what) => new Promise((done) => {
  const content = JSON.stringify(what);
  const request = http.request({ port: admin, method: 'POST', path: '/purge', agent: false, headers: { 'Content-Type': 'application/json', 'Content-Length': content.length } }, (response) => {
    response.resume().on('close', () => done(response.statusCode));
  });
  request.on('error', () => done(0)).end(content);
});

async function measure({ child, admin }) {
  const status = fs.readFileSync(`/proc/${child.pid}/status`, 'utf8');
  const text = await get(admin, '/metrics');
  const metric = (name) => Number(new RegExp(`^headwall_${name} (\\S+)$`, 'm').exec(text)?.[1] ?? NaN);
  return {
    memory: Number(/VmRSS:\s+(\d+)/.exec(status)[1]) / 1024,
    threads: Number(/Threads:\s+(\d+)/.exec(status)[1]),
    descriptors: fs.readdirSync(`/proc/${child.pid}/fd`).length,
    connections: metric('connections'),
    tasks: metric('tasks'),
    fills: metric('fills'),
    stored: (metric('cache_bytes') + metric('kv_bytes')) / 1048576,
    panics: metric('panics_total'),
  };
}

// How much the line through these points rises in all, and how sure that is: the standard error.
function rise(points) {
  const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length;
  const [x, y] = [mean(points.map((point) => point.at)), mean(points.map((point) => point.memory))];
  const spread = points.reduce((sum, point) => sum + (point.at - x) ** 2, 0);
  const slope = points.reduce((sum, point) => sum + (point.at - x) * (point.memory - y), 0) / spread;
  const rest = points.reduce((sum, point) => sum + (point.memory - y - slope * (point.at - x)) ** 2, 0);
  const span = points.at(-1).at - points[0].at;
  return { grown: slope * span, error: Math.sqrt(rest / Math.max(1, points.length - 2) / spread) * span, span };
}

(async () => {
  const origin = await node(path.join(__dirname, 'origin.js'), String(FAULTS));
  const server = await headwall(binary, config(origin.port, 0), 'pipe');
  let [panicked, warned] = [0, 0];
  server.child.stderr.on('data', (data) => {
    const text = data.toString();
    warned += text.split('\n').length - 1;
    if (text.includes('panicked')) { panicked += 1; console.log(text.trim()); }
  });
  await get(server.port, '/plain/warm?size=10');
  await sleep(3000);
  const idle = await measure(server);

  const load = new Load(server.port);
  const started = Date.now();
  const until = started + minutes * 60000;
  load.start(CLIENTS);
  let [number, purges] = [0, 0];
  const timers = [
    setInterval(() => {
      server.write(config(origin.port, number += 1));
      server.child.kill('SIGHUP');
    }, 20000),
    setInterval(() => {
      fs.renameSync(log, `${log}.1`);
      server.child.kill('SIGUSR1');
      setTimeout(() => fs.rmSync(`${log}.1`), 2000);
    }, 30000),
    setInterval(async () => {
      const what = [{ tag: `t${purges % 5}` }, { tag: `kv${purges % 3}` }, { prefix: '/force' }, { url: '/page/7?size=300' }, { all: true }];
      const status = await purge(server.admin, { ...what[purges % what.length], soft: purges % 2 === 0 });
      if (status !== 200) load.complain(`a purge: ${status}`);
      purges += 1;
    }, 2000),
  ];

  const columns = { s: 6, requests: 9, whole: 8, cut: 7, failed: 7, left: 6, wrong: 6, MiB: 7, stored: 7, fds: 5, threads: 8, tasks: 6, conns: 6, fills: 6 };
  const row = (values) => console.log(Object.values(columns).map((width, at) => String(values[at]).padStart(width)).join(' '));
  row(Object.keys(columns));
  const show = (at, found) => {
    const { asked, whole, cut, failed, left, wrong } = load.counts;
    row([at.toFixed(0), asked, whole, cut, failed, left, wrong, found.memory.toFixed(1), found.stored.toFixed(1), found.descriptors, found.threads, found.tasks, found.connections, found.fills]);
  };
  const points = [];
  show(0, idle);
  for (let tick = 1; Date.now() < until && server.child.exitCode === null; tick += 1) {
    await sleep(Math.max(0, started + tick * 2000 - Date.now()));
    const at = (Date.now() - started) / 1000;
    const found = await measure(server);
    if (at > minutes * 30) points.push({ at, memory: found.memory });
    if (tick % 5 === 0) show(at, found);
  }
  timers.forEach(clearInterval);
  await load.stop();
  // What is open ends by itself: kept connections to the origin after two seconds, a fill that nobody reads after its timeout.
  let end = await measure(server);
  const left = () => ['connections', 'fills', 'tasks', 'descriptors', 'threads'].filter((name) => end[name] > idle[name] + (name === 'threads' ? 8 : name === 'tasks' || name === 'descriptors' ? 2 : 0));
  for (const limit = Date.now() + 45000; left().length && Date.now() < limit;) {
    await sleep(1000);
    end = await measure(server);
  }
  show((Date.now() - started) / 1000, end);

  const { grown, error, span } = rise(points);
  const twice = Number(await get(origin.control, '/'));
  const { asked, wrong, whole, dropped } = load.counts;
  load.wrong.forEach((what) => console.log(`wrong: ${what}`));
  const verdict = (good, what) => { console.log(`${good ? 'ok    ' : 'FAILED'} ${what}`); return good; };
  const all = [
    verdict(wrong === 0 && whole > 0, `${wrong} wrong of ${asked} answers, ${(asked / minutes / 60).toFixed(0)} a second; ${number} reloads, ${purges} purges; ${dropped} kept connections closed under a request`),
    verdict(twice === 0, `${twice} uploads sent twice`),
    verdict(end.panics === 0 && panicked === 0 && server.child.exitCode === null, `${end.panics + panicked} panics; ${warned} lines in its log`),
    verdict(!(grown - 2 * error > GROWTH), `memory in the second half: ${grown.toFixed(1)} MiB ± ${(2 * error).toFixed(1)} in ${span.toFixed(0)} s (${GROWTH} allowed)`),
    verdict(left().length === 0, `left over at the end: ${left().map((name) => `${end[name]} ${name}, ${idle[name]} before`).join('; ') || 'nothing'}`),
  ];
  process.exit(all.every(Boolean) ? 0 : 1);
})();
