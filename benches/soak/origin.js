// The origin of the soak: what it answers can be told from the request alone, and of every ten answers three go wrong.
//
// The content for a target is the target, and for whom it is, over and over. `/twice` says how many uploads came twice,
// which is never right; that port has no faults.
'use strict';
const crypto = require('node:crypto');
const http = require('node:http');

// What is said to `who` at `target`, so many bytes.
const content = (target, who, size) => Buffer.alloc(size, `${target} for ${who}|`);
const sizeOf = (target) => Number(/size=(\d+)/.exec(target)?.[1] ?? 100);
module.exports = { content, sizeOf };
if (require.main !== module) return;

const share = Number(process.argv[2]);
const uploads = new Map();
let twice = 0;

const faults = {
  reset: (socket) => socket.resetAndDestroy(),
  close: (socket) => socket.destroy(),
  hang: () => {},
  garbage: (socket) => socket.end('\x16\x03\x01 what is this\r\n\r\n'),
  halfHead: (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Le'),
  twoLengths: (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 9\r\nCache-Control: max-age=60\r\n\r\nhelloEVIL'),
  longHead: (socket) => socket.end(`HTTP/1.1 200 OK\r\n${Array.from({ length: 300 }, (_, n) => `X-${n}: ${'y'.repeat(1000)}\r\n`).join('')}Content-Length: 4\r\n\r\nEVIL`),
  // These begin well.
  cut: (socket, response, body) => { response.write(body.subarray(0, body.length >> 1)); setTimeout(() => socket.destroy(), 20); },
  cutChunked: (socket, response, body) => {
    response.removeHeader('Content-Length');
    response.write(body.subarray(0, body.length >> 1));
    setTimeout(() => socket.destroy(), 20);
  },
  stall: (socket, response, body) => { response.write(body.subarray(0, body.length >> 1)); },
  slow: (socket, response, body) => {
    let at = 0;
    const piece = Math.ceil(body.length / 10);
    const next = () => {
      if (socket.destroyed) return;
      response.write(body.subarray(at, at += piece));
      if (at < body.length) setTimeout(next, 50); else response.end();
    };
    next();
  },
};
const names = [...Object.keys(faults), 'status', 'status', 'slow', 'reset', 'cut'];

function answer(request, response, body, goesWrong) {
  const { socket } = request;
  if (!goesWrong) return response.end(request.method === 'HEAD' ? undefined : body);
  const name = names[Math.floor(Math.random() * names.length)];
  if (name === 'status') {
    response.statusCode = [500, 502, 503, 504][Math.floor(Math.random() * 4)];
    response.setHeader('Cache-Control', 'no-store');
    const told = `failed|${request.url}`;
    response.setHeader('Content-Length', told.length);
    return response.end(request.method === 'HEAD' ? undefined : told);
  }
  if (request.method === 'HEAD' && ['cut', 'cutChunked', 'stall', 'slow'].includes(name)) return socket.destroy();
  return faults[name](socket, response, body);
}

const server = http.createServer((request, response) => {
  const { method, url, headers } = request;
  const kind = url.split(/[/?]/)[1];
  const goesWrong = Math.random() < share;
  if (method === 'POST') {
    const id = headers['x-upload'];
    if (uploads.has(id)) twice += 1;
    uploads.set(id, Date.now());
    const hash = crypto.createHash('sha1');
    // Some of what goes wrong goes wrong before the content is here.
    if (goesWrong && Math.random() < 0.3) return answer(request, response, Buffer.from('early'), true);
    request.on('data', (data) => hash.update(data)).on('error', () => {}).on('end', () => {
      const body = Buffer.from(`${url}|${hash.digest('hex')}`);
      response.setHeader('Content-Length', body.length);
      answer(request, response, body, goesWrong);
    });
    return undefined;
  }
  if (kind === 'events') {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
    let number = 0;
    const timer = setInterval(() => {
      if (goesWrong && number > 5) return request.socket.destroy();
      return response.write(`data: ${url} ${number++}\n\n`);
    }, 20);
    response.on('close', () => clearInterval(timer));
    return undefined;
  }
  const who = { me: headers['x-user'], lang: headers['x-lang'] }[kind] ?? 'all';
  let body = content(url, who, sizeOf(url));
  const tag = `"${crypto.createHash('sha1').update(`${url} ${who}`).digest('hex')}"`;
  response.setHeader('ETag', tag);
  response.setHeader('Cache-Control', { me: 'private, max-age=60', plain: 'no-store' }[kind] ?? 'max-age=3, stale-while-revalidate=2, stale-if-error=5');
  if (kind === 'lang') response.setHeader('Vary', 'X-Lang');
  if (kind === 'page') response.setHeader('Cache-Tag', `t${url.length % 5}`);
  if (headers['if-none-match'] === tag && !goesWrong) { response.statusCode = 304; return response.end(); }
  const range = kind === 'file' && /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? '');
  if (range && (!headers['if-range'] || headers['if-range'] === tag)) {
    const [first, last] = [Number(range[1]), Math.min(Number(range[2]), body.length - 1)];
    response.statusCode = 206;
    response.setHeader('Content-Range', `bytes ${first}-${last}/${body.length}`);
    body = body.subarray(first, last + 1);
  }
  if (url.includes('sized') || kind === 'file') response.setHeader('Content-Length', body.length);
  return answer(request, response, body, goesWrong);
});
server.keepAliveTimeout = 30000;
server.requestTimeout = 0;
server.on('clientError', (error, socket) => socket.destroy());

const control = http.createServer((request, response) => response.end(String(twice)));
setInterval(() => uploads.forEach((at, id) => { if (Date.now() - at > 60000) uploads.delete(id); }), 10000);
server.listen(0, '127.0.0.1', () => control.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ port: server.address().port, control: control.address().port }));
}));
process.stdin.on('end', () => process.exit(0)).resume();
