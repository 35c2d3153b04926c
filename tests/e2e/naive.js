// For the tests of `headwall probe`: an app that reflects what it is sent, and a cache before it that makes every mistake.
//
//   node naive.js cached    the key is the target without what advertising adds; everything is stored
//   node naive.js deaf      the key is the path alone
//   node naive.js plain     the app alone
//   node naive.js tls       as `cached`, with a certificate that nobody vouches for
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const path = require('node:path');
const crypto = require('node:crypto');

const mode = process.argv[2];
const stored = new Map();
const told = (request, content) => `${JSON.stringify(request.headers)} ${request.url} ${content}`;
const random = () => crypto.randomBytes(12).toString('hex');

const apps = {
  // Says all that it was sent.
  all: (request, content) => ({ content: told(request, content) }),
  // The same, for those who follow RFC 9111: what is in the key, or said to choose.
  good: ({ headers: { 'x-probe': unsaid, ...headers }, url }, content) => ({
    fields: { 'Cache-Control': headers.authorization ? 'private' : 'max-age=60', Vary: 'Origin, Referer, User-Agent, Accept, Accept-Language, Cookie' },
    content: told({ headers, url }, content),
  }),
  // Believes whoever says how it was asked.
  scheme: (request) => (request.headers['x-forwarded-proto'] === 'https' ? { status: 301, fields: { Location: 'https://site.test/' } } : { content: 'page' }),
  host: (request) => ({ fields: { Link: `<http://${request.headers['x-forwarded-host'] ?? 'site.test'}:${request.headers['x-forwarded-port'] ?? 80}/>` }, content: 'page' }),
  method: (request) => {
    const method = request.headers['x-http-method-override'];
    return method ? { status: method === 'HEAD' ? 200 : 405 } : { content: 'page' };
  },
  // Takes heads of 8 KiB.
  large: (request) => (request.rawHeaders.join('').length > 8192 ? { status: 400, content: 'no' } : { content: 'page' }),
  // Gives each visitor a number, and one cookie that is everybody's.
  session: () => ({ fields: { 'Set-Cookie': [`number=${random()}`, 'lang=de-default'] }, content: 'page' }),
  cookie: (request) => ({ fields: { 'Set-Cookie': 'theme=light' }, content: `theme ${/theme=(\w+)/.exec(request.headers.cookie ?? '')?.[1]}` }),
  moved: () => ({ status: 302, fields: { Location: '/elsewhere' } }),
};

const answer = (request, response) => {
  let content = '';
  request.on('data', (data) => { content += data; }).on('end', () => {
    const url = new URL(request.url, 'http://site.test');
    for (const name of [...url.searchParams.keys()]) if (/^utm_|^gclid$|^fbclid$/.test(name)) url.searchParams.delete(name);
    const key = mode === 'deaf' ? url.pathname : url.pathname + url.search;
    const found = mode === 'plain' ? undefined : stored.get(key);
    const said = found ?? apps[url.pathname.slice(1)](request, content);
    if (mode !== 'plain') response.setHeader('X-Cache', found ? 'HIT' : 'MISS');
    stored.set(key, said);
    response.writeHead(said.status ?? 200, said.fields);
    response.end(said.content);
  });
};
const pem = fs.readFileSync(path.join(__dirname, 'localhost.pem'));
const server = mode === 'tls' ? https.createServer({ key: pem, cert: pem }, answer) : http.createServer(answer);
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
