// The application of the demo, and the origin of the tests: plain Node, nothing to install.
//
//   node examples/node-app/server.js [--host 127.0.0.1] [--port 8081] [--delay 1000]
//
// Everything it answers takes `delay` milliseconds, like an app that renders slowly.
'use strict';
const http = require('node:http');

const option = (name, fallback) => {
  const at = process.argv.indexOf('--' + name);
  return at < 0 ? fallback : process.argv[at + 1];
};
const host = option('host', '127.0.0.1');
const port = Number(option('port', 8081));
const delay = Number(option('delay', 1000));
let pages = 0;

const server = http.createServer((request, response) => {
  const path = request.url.split('?')[0];
  if (path === '/events') return events(request, response);
  if (path === '/count') return response.end(`${pages}\n`);
  pages += 1;
  setTimeout(() => {
    if (path === '/large') return large(response);
    response.setHeader('Content-Type', 'text/plain');
    response.setHeader('Cache-Control', 'max-age=60');
    response.end('Hello World\n');
  }, delay);
});

// An event each second for as long as somebody listens.
function events(request, response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
  let number = 0;
  const tick = () => response.write(`id: ${++number}\ndata: ${new Date().toISOString()}\n\n`);
  tick();
  const timer = setInterval(tick, 1000);
  request.on('close', () => clearInterval(timer));
}

// 100 MiB that are never held in memory at once.
function large(response) {
  const piece = Buffer.alloc(64 * 1024, 'headwall ');
  let left = 100 * 1024 * 1024;
  response.writeHead(200, { 'Content-Type': 'application/octet-stream', 'Content-Length': left, 'Cache-Control': 'no-store' });
  const more = () => {
    while (left > 0) {
      left -= piece.length;
      if (!response.write(piece)) return response.once('drain', more);
    }
    response.end();
  };
  more();
}

server.listen(port, host, () => console.log(`app: http://${host}:${server.address().port}/`));
