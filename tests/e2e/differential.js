// The app of the differential test: it tells exactly what Node understood of each request.
//
// It answers with the target as it was parsed, so that a response that comes to the wrong connection, or in the wrong
// order, is known. The second port hands over the log and forgets it.
'use strict';
const http = require('node:http');

let log = [];
let connections = 0;
// The system gives a port out again: which of its connections it is belongs to a connection's name.
let uses = {};

function serve(request, response) {
  const seen = {
    connection: request.socket.number,
    method: request.method,
    target: request.url,
    fields: request.rawHeaders,
    trailers: [],
    content: '',
    complete: false,
  };
  log.push(seen);
  const pieces = [];
  request.on('data', (piece) => {
    pieces.push(piece);
    seen.content = Buffer.concat(pieces).toString('latin1');
  });
  const answer = () => {
    if (response.headersSent) return;
    response.setHeader('X-Seen', Buffer.from(request.url, 'latin1').toString('hex'));
    if (request.url.startsWith('/c/')) response.setHeader('Cache-Control', 'max-age=60');
    const kind = request.url.split('/').pop();
    if (kind === 'empty') {
      response.statusCode = 204;
      return response.end();
    }
    if (kind === 'chunks') {
      response.write('in ');
      response.write('pieces');
      return response.end();
    }
    if (kind === 'close') response.setHeader('Connection', 'close');
    response.end('answer');
  };
  request.on('end', () => {
    seen.complete = request.complete;
    seen.trailers = request.rawTrailers;
    answer();
  });
  request.on('error', () => {});
  response.on('error', () => {});
  // Before the content is there.
  if (request.url.endsWith('/early')) answer();
}

const server = http.createServer(serve);
// Whatever is expected.
server.on('checkExpectation', serve);
server.keepAliveTimeout = 60000;
server.requestTimeout = 0;
server.on('connection', (socket) => {
  connections += 1;
  const port = socket.remotePort;
  uses[port] = (uses[port] ?? 0) + 1;
  socket.number = `${port}/${uses[port]}`;
  socket.on('close', () => { connections -= 1; });
});
// What Node itself finds wrong.
server.on('clientError', (error, socket) => {
  log.push({ connection: socket.number, refused: error.code });
  socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nX-Refused: 1\r\nContent-Length: 0\r\n\r\n');
});

const control = http.createServer((request, response) => {
  const told = request.url === '/take' ? log : connections;
  if (request.url === '/take') [log, uses] = [[], {}];
  response.end(JSON.stringify(told));
});

server.listen(0, '127.0.0.1', () => control.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ port: server.address().port, control: control.address().port }));
}));
process.stdin.resume();
process.stdin.on('end', () => process.exit());
