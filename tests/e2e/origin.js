// The origin of the end-to-end tests: a real Node server that does what its path says.
//
// It logs each request and tells the log on `/__log` and what it sent on `/__sent`, from a second
// port, so that questions about it are not counted.
'use strict';
const http = require('node:http');
const crypto = require('node:crypto');

const log = [];
const sent = {};
const open = new Set();
const listeners = new Set();
let version = 1;

const server = http.createServer((request, response) => {
  const url = new URL(request.url, 'http://origin');
  const ask = (name, fallback) => url.searchParams.get(name) ?? fallback;
  log.push({ method: request.method, url: request.url, headers: request.headers, raw: request.rawHeaders });
  if (ask('set-first') && log.filter((entry) => entry.url === request.url).length === 1) response.setHeader('Set-Cookie', 'a=b');
  const kind = url.pathname.split('/')[1];
  const wait = { GET: Number(ask('wait', 0)), POST: Number(ask('postwait', 0)) }[request.method] ?? 0;
  for (const [name, value] of url.searchParams) {
    if (name.startsWith('h.')) response.setHeader(name.slice(2), value.split('|'));
  }
  const again = log.filter((entry) => entry.url === request.url).length > 1;
  for (const [name, value] of url.searchParams) {
    if (name.startsWith('later.') && again) response.setHeader(name.slice(6), value);
  }
  open.add(request.url);
  response.on('close', () => open.delete(request.url));
  const go = () => (kinds[kind] ?? kinds.page)(request, response, ask);
  if (wait) setTimeout(go, wait); else go();
});

// Without nodejs's own limits, so that ours are what is tested.
server.keepAliveTimeout = 30000;
server.requestTimeout = 0;

function write(request, response, total, pace) {
  const piece = Buffer.alloc(64 * 1024, 'x');
  let left = total;
  sent[request.url] = 0;
  const more = () => {
    while (left > 0) {
      const part = left >= piece.length ? piece : piece.subarray(0, left);
      left -= part.length;
      sent[request.url] += part.length;
      if (!response.write(part)) return response.once('drain', more);
    }
    response.end();
  };
  more();
}

const kinds = {
  // A page: its version, and what it was asked.
  page(request, response, ask) {
    const status = Number(ask('status', 200));
    const tag = `"v${version}"`;
    // What it answers is known now, and leaves later.
    const late = (text) => (ask('late') ? setTimeout(() => response.end(text), Number(ask('late'))) : response.end(text));
    if (ask('etag')) response.setHeader('ETag', tag);
    if (ask('large')) response.setHeader('X-Large', 'x'.repeat(20000));
    if (ask('etag') && request.headers['if-none-match'] === tag) {
      response.statusCode = 304;
      if (ask('set304')) { response.setHeader('Set-Cookie', ask('set304')); response.setHeader('Vary', 'Origin'); }
      return late();
    }
    if (ask('then304') && request.headers['if-none-match']) { response.statusCode = 304; response.setHeader('ETag', '"e2"'); return response.end(); }
    if (request.method === 'POST') version += 1;
    if (request.method === 'HEAD' && ask('headlength')) response.setHeader('Content-Length', ask('headlength'));
    response.statusCode = status;
    late(ask('say', `page v${version} for ${request.headers[ask('echo', 'host')] ?? '-'}`));
  },
  // Content in chunks.
  chunks(request, response, ask) {
    const pieces = ask('pieces', 'one two three').split(' ');
    const next = () => {
      if (!pieces.length) return response.end();
      response.write(pieces.shift());
      setTimeout(next, Number(ask('pace', 0)));
    };
    next();
  },
  // A page that takes so many milliseconds, in ten pieces that say when they were sent.
  stamped(request, response, ask) {
    let left = 10;
    const next = () => {
      response.write(`${Date.now()}\n`.padEnd(1024));
      left -= 1;
      if (!left) return response.end();
      setTimeout(next, Number(ask('takes', 1000)) / 10);
    };
    next();
  },
  // So many bytes; with or without a length.
  bytes(request, response, ask) {
    const total = Number(ask('size'));
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '');
    if (range && ask('ranges')) {
      const length = range[2] - range[1] + 1;
      response.writeHead(206, { 'Content-Range': `bytes ${range[1]}-${range[2]}/${total}`, 'Content-Length': length });
      return write(request, response, length);
    }
    if (ask('sized')) response.setHeader('Content-Length', total);
    write(request, response, total);
  },
  // A file of lines of ten bytes that say its version and their own number; answers single ranges.
  file(request, response, ask) {
    if (request.method === 'POST') return response.end();
    const total = Number(ask('size'));
    const now = ask('fixed') ? 1 : version;
    const tag = ask('weak') ? `W/"f${now}"` : `"f${now}"`;
    if (!ask('untagged')) response.setHeader('ETag', tag);
    if (ask('modified')) response.setHeader('Last-Modified', ask('modified'));
    response.setHeader('Accept-Ranges', 'bytes');
    const condition = request.headers['if-range'];
    const range = /^bytes=(\d*)-(\d*)$/.exec(request.headers.range ?? '');
    let [first, last] = [0, total - 1];
    if (range && !(range[2] && Number(range[1]) > Number(range[2])) && !ask('unranged') && (!condition || condition === tag || condition === ask('modified'))) {
      if (range[1]) [first, last] = [Number(range[1]), range[2] ? Math.min(Number(range[2]), last) : last];
      else first = Math.max(0, total - Number(range[2]));
      if (first >= total) {
        response.writeHead(416, { 'Content-Range': `bytes */${total}` });
        return response.end();
      }
      response.statusCode = 206;
      response.setHeader('Content-Range', `bytes ${first}-${last}/${total}`);
    }
    response.setHeader('Content-Length', last - first + 1);
    if (request.method === 'HEAD') return response.end();
    sent[request.url] ??= 0;
    let at = first;
    const stop = ask('cut') ? first + Number(ask('cut')) : Infinity;
    const more = () => {
      while (at <= last) {
        if (at >= stop) return ask('hang') ? undefined : setTimeout(() => request.socket.destroy(), 50);
        const lines = [];
        const end = Math.min(last, stop - 1, at + 65535);
        for (let line = Math.floor(at / 10); line * 10 <= end; line += 1) lines.push(`${now}${String(line).padStart(9 - `${now}`.length, '0')}\n`);
        const from = at % 10;
        const piece = lines.join('').slice(from, from + end - at + 1);
        at += piece.length;
        sent[request.url] += piece.length;
        if (!response.write(piece)) return response.once('drain', more);
      }
      response.end();
    };
    if (ask('late')) setTimeout(more, Number(ask('late'))); else more();
  },
  // Events, until the client leaves; each says when it was sent.
  events(request, response, ask) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': ask('cc', 'no-cache') });
    const timer = setInterval(() => response.write(`data: ${Date.now()}\n\n`), Number(ask('every', 100)));
    response.on('close', () => clearInterval(timer));
  },
  // Events that the test asks for, one by one, at the control port.
  told(request, response, ask) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': ask('cc', 'no-cache') });
    response.flushHeaders();
    listeners.add(response);
    response.on('close', () => listeners.delete(response));
  },
  // Breaks off in the middle.
  broken(request, response, ask) {
    if (ask('sized')) response.setHeader('Content-Length', 1000);
    response.write('half');
    setTimeout(() => request.socket.destroy(), Number(ask('after', 50)));
  },
  // Two bytes the first time, then without end.
  growing(request, response) {
    if (log.filter((entry) => entry.url === request.url).length === 1) return response.end('hi');
    const piece = Buffer.alloc(64 * 1024, 'x');
    const more = () => { while (!response.destroyed && response.write(piece)); };
    response.on('drain', more);
    more();
  },
  // Closes so many times without a word, then answers.
  failing(request, response, ask) {
    const before = log.filter((entry) => entry.url === request.url).length;
    if (before <= Number(ask('times'))) return request.socket.destroy();
    response.end('at last');
  },
  // Never answers.
  hang() {},
  // Answers before the request is complete.
  early(request, response) {
    response.statusCode = 413;
    response.end('too much');
  },
  // Takes content and tells its hash.
  upload(request, response) {
    const hash = crypto.createHash('sha256');
    let length = 0;
    request.on('data', (chunk) => { hash.update(chunk); length += chunk.length; });
    request.on('end', () => response.end(`${length} ${hash.digest('hex')}`));
  },
  // 103 and the page at once.
  both(request, response, ask) {
    request.socket.write('HTTP/1.1 103 Early Hints\r\nLink: </s.css>\r\n\r\n' +
      'HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok');
  },
  // Content up to the end of the connection, under a transfer coding that does not exist.
  unframed(request, response, ask) {
    request.socket.end(`HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: ${ask('coding')}\r\n\r\nall of it`);
  },
  // 103, then the page.
  hints(request, response) {
    response.writeEarlyHints({ link: '</s.css>; rel=preload' });
    setTimeout(() => response.end('final'), 50);
  },
  // Closes the connection that has served before, without a word.
  fragile(request, response) {
    if (request.socket.served) return request.socket.destroy();
    response.end('fine');
  },
};
server.on('request', (request) => { setImmediate(() => { request.socket.served = true; }); });

server.on('upgrade', (request, socket, head) => {
  log.push({ method: request.method, url: request.url, headers: request.headers, raw: request.rawHeaders });
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nwelcome ');
  if (head.length) socket.write(head);
  socket.on('data', (data) => socket.write(data));
  socket.on('error', () => {});
});

const control = http.createServer((request, response) => {
  const url = new URL(request.url, 'http://control');
  if (url.pathname === '/__log') return response.end(JSON.stringify(log));
  if (url.pathname === '/__sent') return response.end(JSON.stringify(sent));
  if (url.pathname === '/__open') return response.end(JSON.stringify([...open]));
  if (url.pathname === '/__tell') {
    for (const listener of listeners) listener.write(`data: ${url.searchParams.get('event')}\n\n`);
    return response.end(JSON.stringify(listeners.size));
  }
  response.statusCode = 404;
  response.end();
});

const socket = process.argv[2];
const ready = () => control.listen(0, '127.0.0.1', () => {
  const address = server.address();
  console.log(JSON.stringify({ port: address.port ?? 0, control: control.address().port }));
});
if (socket) server.listen(socket.startsWith('[') ? { host: '::1', port: 0 } : socket, ready);
else server.listen(0, '127.0.0.1', ready);
// The test ends us by closing our input, also when it dies.
process.stdin.on('end', () => process.exit(0)).resume();
