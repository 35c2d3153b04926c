// What an idle connection costs: resident memory for each of 10,000 clients that are connected and want nothing.
//
//   node benches/idle.js [target/release/headwall] [10000]
//
// Headwall and, where it is installed, nginx, one after the other, in front of the same origin: silent connections, which
// never sent a byte, and kept ones, which had one response that was stored. Exits with 1 when one is lost, or costs
// Headwall more than 32 KiB. Takes a minute.
'use strict';
const http = require('node:http');
const path = require('node:path');
const { connect, get, headwall, nginx, node, resident, sleep } = require('./loopback');
const LIMIT = 32;
const EACH = 2500; // connections of one process

// A process that holds connections; their number is what it prints, again whenever it is asked.
if (process.argv[2] === 'hold') {
  const [kind, port, count, address] = [process.argv[3], ...process.argv.slice(4, 6).map(Number), process.argv[6]];
  let open = 0;
  (async () => {
    for (let number = 0; number < count; number += 50) {
      await Promise.all(Array.from({ length: Math.min(50, count - number) }, async () => {
        const socket = await connect(port, address);
        socket.on('error', () => {}).on('close', () => { open -= 1; });
        open += 1;
        if (kind === 'silent') return undefined;
        return new Promise((done) => {
          let text = '';
          socket.on('data', (data) => { text += data; if (text.includes('end\n')) done(); }).on('close', done);
          socket.write('GET /page HTTP/1.1\r\nHost: site.test\r\n\r\n');
        });
      }));
    }
    console.log(JSON.stringify({ open }));
    process.stdin.on('data', () => console.log(JSON.stringify({ open }))).on('end', () => process.exit(0));
  })();
  return;
}

const binary = process.argv[2] ?? path.join(__dirname, '../target/release/headwall');
const total = Number(process.argv[3] ?? 10000);

async function measure(server, kind) {
  for (let warm = 0; warm < 100; warm += 1) await get(server.port, '/page');
  const before = resident(server.child.pid);
  const holders = await Promise.all(Array.from({ length: Math.ceil(total / EACH) }, (_, number) => (
    node(__filename, 'hold', kind, server.port, Math.min(EACH, total - number * EACH), `127.0.0.${number + 2}`))));
  await sleep(1000);
  const each = (resident(server.child.pid) - before) / total / 1024;
  const asked = process.hrtime.bigint();
  await get(server.port, '/page');
  const took = Number(process.hrtime.bigint() - asked) / 1e6;
  let open = 0;
  for (const { child } of holders) {
    child.stdin.write('\n');
    open += JSON.parse(await new Promise((done) => child.stdout.once('data', done))).open;
    child.stdin.end();
  }
  const good = open === total && (server.name !== 'Headwall' || each <= LIMIT);
  console.log(`${server.name.padEnd(10)} ${kind.padEnd(8)} ${String(total).padStart(6)} connections ${each.toFixed(1).padStart(7)} KiB each, ${total - open} lost, another request meanwhile in ${took.toFixed(1)} ms${good ? '' : '   FAILED'}`);
  server.stop();
  await sleep(500);
  return good;
}

(async () => {
  const origin = http.createServer((request, response) => {
    response.setHeader('Cache-Control', 'max-age=3600');
    response.end(`${'x'.repeat(1020)}end\n`);
  });
  await new Promise((done) => origin.listen(0, '127.0.0.1', done));
  const { port } = origin.address();
  const start = {
    headwall: () => headwall(binary, `upstreams: { app: { servers: ["127.0.0.1:${port}"] } }\nroutes: [{ to: { proxy: app }, cache: {} }]\n`),
    nginx: () => nginx((here) => `server { listen 127.0.0.1:${here} backlog=1024; location / { proxy_pass http://127.0.0.1:${port}; proxy_cache c; } }`),
  };
  let good = true;
  for (const kind of ['silent', 'kept']) {
    for (const name of ['headwall', 'nginx']) {
      const server = await start[name]();
      if (server) good = await measure(server, kind) && good;
      else console.log('nginx is not installed; its rows are left out');
    }
  }
  process.exit(good ? 0 : 1);
})();
