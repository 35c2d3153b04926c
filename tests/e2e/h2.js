// A client of HTTP/2 in clear text: Node's own. Sends the requests of a JSON list, all at once or one after the other, on
// one connection, and prints what came back.
'use strict';
const http2 = require('node:http2');
const [port, order, list] = process.argv.slice(2);
const session = http2.connect(`http://127.0.0.1:${port}`);
let away = null;
session.on('goaway', (code) => { away = code; });
session.on('error', () => {});

// What announces content and brings none keeps its stream open.
const ask = ({ headers, content, pieces, trailers }) => new Promise((resolve) => {
  const result = { interim: [], status: 0, headers: {}, content: '', trailers: null, reset: null, ended: false };
  const request = session.request({ ':method': 'GET', ':path': '/', host: 'site.test', ':authority': 'site.test', ...headers },
    { endStream: content === undefined && !pieces && !trailers && !headers['content-length'], waitForTrailers: Boolean(trailers) });
  const parts = [];
  request.on('headers', (fields) => result.interim.push(fields[':status']));
  request.on('response', (fields) => { result.status = fields[':status']; result.headers = fields; });
  request.on('trailers', (fields) => { result.trailers = fields; });
  request.on('data', (data) => parts.push(data));
  request.on('end', () => { result.ended = true; if (!request.writableEnded) request.close(); });
  request.on('wantTrailers', () => request.sendTrailers(trailers));
  request.on('error', () => {});
  request.on('close', () => { result.reset = request.rstCode; result.content = Buffer.concat(parts).toString('latin1'); resolve(result); });
  if (pieces) { for (const size of pieces) request.write('x'.repeat(size)); request.end(); } else if (content !== undefined || trailers) request.end(content ?? '');
});

(async () => {
  const requests = JSON.parse(list);
  const results = [];
  if (order === 'together') results.push(...await Promise.all(requests.map(ask)));
  else for (const request of requests) results.push(await ask(request));
  session.close();
  session.on('close', () => { console.log(JSON.stringify({ results, away })); });
})();
