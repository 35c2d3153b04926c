// What slow clients cost the others: how long ordinary requests take, quiet and while 200 slow clients are held.
//
//   node benches/slow.js [target/release/headwall] [rounds, 5]
//
// Headwall and, where it is installed, nginx, one after the other in each round. A connection that the server closes is
// opened again. Exits with 1 when an ordinary request fails, or p99 (the median of the rounds) is 50 ms above the quiet
// one at Headwall. Takes five minutes.
'use strict';
const http = require('node:http');
const path = require('node:path');
const { connect, get, headwall, nginx, node, sleep } = require('./loopback');
const SLOW = 200;
const LONGER = 50;
const FOR = 4000;

const HOST = 'Host: site.test\r\n';
const KINDS = {
  idle: { first: '', each: () => {} },
  'slow head': { first: `GET /slow HTTP/1.1\r\n${HOST}`, each: (socket) => socket.write('X-Slow: b\r\n') },
  'slow content': { first: `POST /slow HTTP/1.1\r\n${HOST}Content-Length: 100000\r\n\r\n`, each: (socket) => socket.write('x') },
  'slow chunks': { first: `POST /slow HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n`, each: (socket) => socket.write('1\r\nx\r\n') },
  // Twenty times, because what the system holds for a reader that does not read is more than one of them.
  'slow reader': { first: `GET /large HTTP/1.1\r\n${HOST}\r\n`.repeat(20), each: (socket) => socket.read(1024) },
};

// A process that holds slow clients.
if (process.argv[2] === 'hold') {
  const [kind, port] = [KINDS[process.argv[3]], Number(process.argv[4])];
  const open = async () => {
    const socket = await connect(port);
    if (kind === KINDS['slow reader']) socket.pause(); else socket.resume();
    const timer = setInterval(() => kind.each(socket), 1000);
    socket.on('error', () => {}).once('close', () => { clearInterval(timer); setTimeout(() => open().catch(() => {}), 100); });
    if (kind.first) socket.write(kind.first);
  };
  (async () => {
    for (let number = 0; number < SLOW; number += 1) await open();
    console.log('{}');
    process.stdin.on('end', () => process.exit(0)).resume();
  })();
  return;
}

const binary = process.argv[2] ?? path.join(__dirname, '../target/release/headwall');
const rounds = Number(process.argv[3] ?? 5);
const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];

// One client after the other's manner: half of them connect anew each time, half of the requests go to the origin.
async function ordinary(port) {
  const times = [];
  let failed = 0;
  const end = Date.now() + FOR;
  await Promise.all(Array.from({ length: 8 }, async (_, client) => {
    const agent = client % 2 ? new http.Agent({ keepAlive: true, maxSockets: 1 }) : false;
    for (let number = 0; Date.now() < end; number += 1) {
      const since = process.hrtime.bigint();
      const good = await new Promise((done) => {
        http.get({ port, path: number % 2 ? '/page' : `/plain?${number}`, agent, timeout: 5000 }, (response) => {
          let text = '';
          response.on('data', (data) => { text += data; }).on('close', () => done(response.statusCode === 200 && text === 'ordinary'));
        }).on('error', () => done(false)).on('timeout', () => done(false));
      });
      if (!good) failed += 1;
      times.push(Number(process.hrtime.bigint() - since) / 1e6);
      await sleep(10);
    }
    if (agent) agent.destroy();
  }));
  times.sort((a, b) => a - b);
  return { p99: times[Math.floor(times.length * 0.99)], count: times.length, failed };
}

(async () => {
  const large = Buffer.alloc(3 << 20, 'x');
  const origin = http.createServer((request, response) => {
    response.setHeader('Cache-Control', /^\/(page|large)/.test(request.url) ? 'max-age=3600' : 'no-store');
    request.resume().once('end', () => response.end(request.url === '/large' ? large : 'ordinary')).on('error', () => {});
  });
  origin.requestTimeout = 0;
  await new Promise((done) => origin.listen(0, '127.0.0.1', done));
  const { port } = origin.address();
  const servers = [
    await headwall(binary, `upstreams: { app: { servers: ["127.0.0.1:${port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]\n`),
    await nginx((here) => `upstream app { server 127.0.0.1:${port}; keepalive 64; }
  server { listen 127.0.0.1:${here} backlog=1024; location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; proxy_cache c; } }`),
  ];
  if (!servers[1]) console.log('nginx is not installed; its columns are left out');
  const present = servers.filter(Boolean);
  const found = new Map();
  for (let round = 1; round <= rounds; round += 1) {
    for (const server of present) {
      await get(server.port, '/large');
      for (const kind of ['quiet', ...Object.keys(KINDS)]) {
        const holder = kind === 'quiet' ? undefined : await node(__filename, 'hold', kind, server.port);
        const seen = await ordinary(server.port);
        holder?.child.stdin.end();
        await sleep(200);
        const key = `${kind}/${server.name}`;
        found.set(key, [...(found.get(key) ?? []), seen]);
        process.stderr.write(`\r  round ${round}: ${server.name}, ${kind}: ${seen.p99.toFixed(1)} ms, ${seen.failed} of ${seen.count} failed      `);
      }
    }
  }
  process.stderr.write('\r');
  let good = true;
  const p99 = (kind, server) => median(found.get(`${kind}/${server.name}`).map((seen) => seen.p99));
  console.log(`p99 of ordinary requests, median of ${rounds} rounds, while ${SLOW} clients of a kind are held`.padEnd(100));
  for (const kind of ['quiet', ...Object.keys(KINDS)]) {
    const columns = present.map((server) => {
      const failed = found.get(`${kind}/${server.name}`).reduce((sum, seen) => sum + seen.failed, 0);
      const count = found.get(`${kind}/${server.name}`).reduce((sum, seen) => sum + seen.count, 0);
      const fits = failed === 0 && p99(kind, server) <= p99('quiet', server) + LONGER;
      if (server.name === 'Headwall') good &&= fits;
      return `${server.name} ${p99(kind, server).toFixed(1).padStart(6)} ms, ${failed} of ${count} failed${fits ? '' : '  FAILED'}`;
    });
    console.log(`${kind.padEnd(14)} ${columns.join('    ')}`);
  }
  process.exit(good ? 0 : 1);
})();
