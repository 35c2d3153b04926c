// The clients of the soak: each asks for something at random and looks at every byte of the answer.
//
// What is cut or refused is counted; what is whole has to be right, and what is cut has to be the beginning of it.
'use strict';
const crypto = require('node:crypto');
const http = require('node:http');
const { sleep } = require('../loopback');
const { content, sizeOf } = require('./origin');

const FAILED = new Set([502, 503, 504, 500]);
const pick = (list) => list[Math.floor(Math.random() * list.length)];
const below = (limit) => Math.floor(Math.random() * limit);
// A few are asked for all the time, the others hardly ever.
const number = (many) => (Math.random() < 0.7 ? below(50) : below(many));

class Load {
  constructor(port) {
    this.port = port;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 200, maxFreeSockets: 100 });
    this.counts = { asked: 0, whole: 0, cut: 0, failed: 0, left: 0, wrong: 0, dropped: 0 };
    this.wrong = [];
    this.values = new Map();
    this.over = false;
    this.uploads = 0;
  }

  complain(what) {
    this.counts.wrong += 1;
    if (this.wrong.length < 20) this.wrong.push(what);
  }

  // One request: what came, and whether all of it did. With `leave` the client goes away while it waits.
  ask(method, path, { headers = {}, body, leave } = {}) {
    this.counts.asked += 1;
    return new Promise((done) => {
      const pieces = [];
      let found = { status: 0, headers: {}, whole: false };
      const end = (whole) => done({ ...found, whole, body: Buffer.concat(pieces) });
      const agent = Math.random() < 0.1 ? false : this.agent;
      const request = http.request({ port: this.port, method, path, headers: { Host: 'site.test', ...headers }, agent, timeout: 20000 }, (response) => {
        found = { status: response.statusCode, headers: response.headers };
        response.on('data', (data) => pieces.push(data)).on('error', () => {}).on('close', () => end(response.complete));
      });
      // Any server may close a kept connection while a request is on its way.
      request.on('error', () => { found.reused = request.reusedSocket; end(false); }).on('timeout', () => { this.complain(`${method} ${path}: nothing for 20 s`); request.destroy(); });
      if (leave !== undefined) setTimeout(() => request.destroy(), leave);
      request.end(body);
    });
  }

  // Judges an answer to a request for this content.
  judge(what, found, right, statuses = [200]) {
    const { status, whole, body } = found;
    if (status === 0) { this.counts.cut += 1; return; }
    if (FAILED.has(status)) {
      this.counts.failed += 1;
      const told = body.toString();
      if (whole && told && !told.startsWith('<!doctype html>') && told !== `failed|${what.split(' ')[1]}`) this.complain(`${what}: ${status} says ${told.slice(0, 100)}`);
      return;
    }
    if (!statuses.includes(status)) { this.complain(`${what}: ${status}`); return; }
    if (whole) this.counts.whole += 1; else this.counts.cut += 1;
    const fits = whole ? body.equals(right) : body.equals(right.subarray(0, body.length));
    if (!fits) this.complain(`${what}: ${status}, ${body.length} bytes of ${right.length}, ${whole ? 'whole' : 'cut'}: ${body.subarray(0, 100)}`);
  }

  async page() {
    const kind = pick(['page', 'page', 'page', 'force', 'plain']);
    const many = kind === 'page' ? 20000 : 1000;
    const path = `/${kind}/${number(many)}?size=${pick([10, 300, 5000, 60000])}${pick(['', '&sized'])}`;
    this.judge(`GET ${path}`, await this.ask('GET', path), content(path, 'all', sizeOf(path)));
  }

  async head() {
    const path = `/page/${number(1000)}?size=300&sized`;
    this.judge(`HEAD ${path}`, await this.ask('HEAD', path), Buffer.alloc(0));
  }

  async own() {
    const [kind, field, who] = pick([['me', 'X-User', `user${below(20)}`], ['lang', 'X-Lang', pick(['de', 'en', 'fr'])]]);
    const path = `/${kind}/${below(30)}?size=500`;
    this.judge(`GET ${path} ${who}`, await this.ask('GET', path, { headers: { [field]: who } }), content(path, who, 500));
  }

  async condition() {
    const path = `/page/${number(1000)}?size=5000`;
    const tag = `"${crypto.createHash('sha1').update(`${path} all`).digest('hex')}"`;
    const found = await this.ask('GET', path, { headers: { 'If-None-Match': pick([tag, '"other"']) } });
    const right = found.status === 304 ? Buffer.alloc(0) : content(path, 'all', 5000);
    this.judge(`GET ${path} if-none-match`, found, right, [200, 304]);
  }

  async range() {
    const size = 1 << 20;
    const path = `/file/${below(20)}?size=${size}`;
    const first = below(size);
    const last = Math.min(size - 1, first + pick([9, 999, 99999, 300000]));
    const found = await this.ask('GET', path, { headers: { Range: `bytes=${first}-${last}` } });
    const whole = content(path, 'all', size);
    const said = found.headers['content-range'];
    if (found.status === 206 && said !== `bytes ${first}-${last}/${size}`) this.complain(`GET ${path} ${first}-${last}: ${said}`);
    this.judge(`GET ${path} ${first}-${last}`, found, found.status === 206 ? whole.subarray(first, last + 1) : whole, [200, 206]);
  }

  async upload() {
    const path = `/${pick(['plain', 'page'])}/${number(1000)}?size=300`;
    const body = crypto.randomBytes(pick([10, 5000, 200000]));
    const length = Math.random() < 0.5 ? { 'Content-Length': body.length } : { 'Transfer-Encoding': 'chunked' };
    let right = Buffer.from(`${path}|${crypto.createHash('sha1').update(body).digest('hex')}`);
    const found = await this.ask('POST', path, { headers: { ...length, 'X-Upload': `${this.uploads += 1}` }, body });
    if ('early'.startsWith(found.body.toString())) right = Buffer.from('early');
    this.judge(`POST ${path}`, found, right);
  }

  // A key of one client's own, so that it knows what has to be there. Memory, a purge and `ttl` may take it, nobody changes it.
  async value(client) {
    const path = `/cache/${client}-${below(30)}`;
    const known = this.values.get(path) ?? [];
    const choice = Math.random();
    if (choice < 0.4) {
      const body = content(path, crypto.randomUUID(), pick([10, 2000, 30000]));
      const found = await this.ask('PUT', `${path}?ttl=${pick([1, 5, 600])}`, { headers: { 'Cache-Tag': `kv${below(3)}`, 'Content-Length': body.length }, body });
      if ([200, 201].includes(found.status)) { this.counts.whole += 1; this.values.set(path, [body]); return; }
      this.values.set(path, [...known, body]);
      if (found.reused) { this.counts.dropped += 1; return; }
      this.complain(`PUT ${path}: ${found.status}`);
    } else if (choice < 0.5) {
      const found = await this.ask('DELETE', path);
      if (found.status === 204 || found.status === 404) { this.counts.whole += 1; this.values.set(path, []); return; }
      if (found.reused) { this.counts.dropped += 1; return; }
      this.complain(`DELETE ${path}: ${found.status}`);
    } else {
      const found = await this.ask('GET', path);
      if (found.reused) { this.counts.dropped += 1; return; }
      const right = found.status === 404 || (found.status === 200 && found.whole && known.some((body) => body.equals(found.body)));
      if (right) this.counts.whole += 1; else this.complain(`GET ${path}: ${found.status}, ${found.body.subarray(0, 100)}`);
    }
  }

  // Some events, then the client leaves.
  async events() {
    const path = `/events?n=${below(1e9)}`;
    const { status, body } = await this.ask('GET', path, { leave: 100 + below(2000) });
    this.counts.left += 1;
    if (status !== 200 && status !== 0 && !FAILED.has(status)) this.complain(`GET ${path}: ${status}`);
    if (status !== 200) return;
    const events = body.toString().split('\n\n').slice(0, -1);
    const bad = events.findIndex((event, at) => event !== `data: ${path} ${at}`);
    if (bad >= 0) this.complain(`GET ${path}: event ${bad} is ${events[bad].slice(0, 100)}`);
  }

  async leave() {
    const path = `/${pick(['page', 'plain', 'force'])}/${number(2000)}?size=60000`;
    const { status, whole, body } = await this.ask('GET', path, { leave: below(30) });
    this.counts.left += 1;
    if (status === 200 && !body.equals(content(path, 'all', 60000).subarray(0, whole ? undefined : body.length))) this.complain(`GET ${path}: left with something else`);
  }

  async client(name) {
    const work = [
      ...Array(50).fill(() => this.page()), ...Array(3).fill(() => this.head()), ...Array(8).fill(() => this.own()),
      ...Array(5).fill(() => this.condition()), ...Array(6).fill(() => this.range()), ...Array(6).fill(() => this.upload()),
      ...Array(16).fill(() => this.value(name)), () => this.events(), ...Array(5).fill(() => this.leave()),
    ];
    while (!this.over) {
      await pick(work)();
      await sleep(below(20));
    }
  }

  start(clients) {
    this.running = Array.from({ length: clients }, (_, name) => this.client(name));
  }

  async stop() {
    this.over = true;
    await Promise.all(this.running);
    this.agent.destroy();
  }
}

module.exports = { Load };
