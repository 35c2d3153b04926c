// What idle.js, slow.js and soak.js start on loopback: the binary and nginx, and what the system knows of both.
'use strict';
const { execFileSync, spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'headwall-bench-'));
fs.chmodSync(folder, 0o755); // nginx works as another user
const children = [];
process.on('exit', () => {
  children.forEach((child) => child.kill());
  fs.rmSync(folder, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const freePort = () => new Promise((done) => {
  const server = net.createServer().listen(0, '127.0.0.1', () => { const { port } = server.address(); server.close(() => done(port)); });
});

const connect = (port, localAddress = '127.0.0.1') => new Promise((done, fail) => {
  const socket = net.connect({ port, host: '127.0.0.1', localAddress }, () => { socket.removeListener('error', fail); done(socket); });
  socket.once('error', fail);
});

const get = (port, target) => new Promise((done, fail) => {
  http.get({ port, path: target, agent: false }, (response) => {
    let text = '';
    response.on('data', (data) => { text += data; }).on('end', () => done(text)).on('error', fail);
  }).on('error', fail);
});

// A child that prints a line of JSON when it is ready, and ends when its input does.
async function node(...command) {
  const child = spawn(process.execPath, command, { stdio: ['pipe', 'pipe', 'inherit'] });
  children.push(child);
  const line = await new Promise((done, fail) => {
    child.stdout.once('data', done);
    child.once('exit', (code) => fail(new Error(`${command[0]} ended with ${code}`)));
  });
  return { child, ...JSON.parse(line) };
}

// Starts a server with as many descriptors as this user may have, and waits until it accepts.
async function serve(port, stderr, command) {
  const child = spawn('sh', ['-c', 'ulimit -n "$(ulimit -Hn)"; exec "$@"', 'sh', ...command], { stdio: ['ignore', 'ignore', stderr] });
  children.push(child);
  for (const end = Date.now() + 10000; ;) {
    try { (await connect(port)).destroy(); return child; } catch { /* not yet */ }
    if (child.exitCode !== null || Date.now() > end) throw new Error(`${command[0]} does not accept connections`);
    await sleep(20);
  }
}

async function headwall(binary, yaml, stderr = 'ignore') {
  const [port, admin] = [await freePort(), await freePort()];
  const file = path.join(folder, `${port}.yaml`);
  const write = (more) => fs.writeFileSync(file, `threads: 2\nlisten: ["127.0.0.1:${port}"]\nadmin: { listen: "127.0.0.1:${admin}" }\n${more}`);
  write(yaml);
  const child = await serve(port, stderr, [binary, 'run', '--config', file]);
  return { name: 'Headwall', port, admin, child, write, stop: () => child.kill() };
}

// Undefined where it is not installed.
async function nginx(server) {
  try { execFileSync('nginx', ['-v'], { stdio: 'ignore' }); } catch { return undefined; }
  const port = await freePort();
  const file = path.join(folder, `${port}.conf`);
  fs.writeFileSync(file, `worker_processes 2; pid ${folder}/${port}.pid; error_log /dev/null; daemon off; worker_rlimit_nofile 65536;
events { worker_connections 16384; }
http {
  access_log off; keepalive_requests 1000000; client_body_temp_path ${folder}/b; proxy_temp_path ${folder}/t;
  fastcgi_temp_path ${folder}/f; uwsgi_temp_path ${folder}/u; scgi_temp_path ${folder}/s;
  proxy_cache_path ${folder}/cache keys_zone=c:10m;
  ${server(port)}
}
`);
  const child = await serve(port, 'ignore', ['nginx', '-p', folder, '-c', file]);
  return { name: 'nginx', port, child, stop: () => child.kill() };
}

// Bytes that this process and its children hold, what they share counted once.
function resident(pid) {
  let sum = Number(/^Pss:\s+(\d+)/m.exec(fs.readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))[1]) * 1024;
  const below = fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  for (const child of below ? below.split(' ') : []) sum += resident(child);
  return sum;
}

module.exports = { children, connect, folder, freePort, get, headwall, nginx, node, resident, serve, sleep };
