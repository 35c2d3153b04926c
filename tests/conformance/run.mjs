// Runs the public test suite for HTTP caches (http-cache-tests) against Headwall.
//
//   node run.mjs --headwall BINARY [--suite DIR] [--port PORT] [--list-checks]
//
// The suite is the npm package of package.json, or with --suite a checkout of its repository. What does
// not pass is listed with a reason in a file beside this one; the run succeeds when that list is right
// in both directions. Nothing here decides what a test means: that is the suite's own code.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

// How many tests run at once: most of them wait most of the time.
const TOGETHER = 50;
// A test that fails is tried again alone, unless so many fail that it is not for want of luck.
const SECOND_TRIES = 10;
// The whole run, a request, and the time until both servers answer; in milliseconds.
const LIMIT = 180_000;
const PATIENCE = 10_000;

const { values: options } = parseArgs({
  options: {
    headwall: { type: 'string' },
    suite: { type: 'string' },
    port: { type: 'string' },
    'list-checks': { type: 'boolean' },
  },
});
if (!options.headwall) {
  console.error('usage: node run.mjs --headwall BINARY [--suite DIR] [--port PORT] [--list-checks]');
  process.exit(2);
}
// With --list-checks the list alone is on standard output.
const say = options['list-checks'] ? console.error : console.log;

const here = import.meta.dirname;
const suite = resolve(options.suite ?? join(here, 'node_modules/http-cache-tests'));
// The repository keeps in test-engine/ what the package has at its root.
const newer = existsSync(join(suite, 'test-engine'));
const engine = newer ? join(suite, 'test-engine') : suite;
const list = newer ? 'deviations-repository.json' : 'deviations-0.4.5.json';
const load = (...path) => import(pathToFileURL(join(...path)));

const folder = mkdtempSync(join(tmpdir(), 'headwall-conformance-'));
const started = [];

function end(code) {
  for (const { child } of started) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
  process.exit(code);
}
process.on('SIGINT', () => end(130));
process.on('SIGTERM', () => end(143));
setTimeout(() => {
  say(`not done after ${LIMIT / 1000} s`);
  end(1);
}, LIMIT);

try {
  end(await main() ? 0 : 1);
} catch (error) {
  say(error.stack);
  end(1);
}

async function main() {
  const since = Date.now();
  const sets = await testSets();
  const { makeTest, testResults: results } = await testRunner(await startBoth());
  const tests = sets.flatMap((set) => set.tests).filter((test) => !test.browser_only);
  // A run writes into the test that it runs.
  const run = (test) => makeTest(structuredClone(test));
  await pool(tests, run);
  stillThere();

  const judge = await judgement(sets);
  const outcome = (test) => judge(test.id, results);
  const deviations = JSON.parse(readFileSync(join(here, list), 'utf8'));
  const counts = (test) => test.kind !== 'check';
  const failing = () => tests.filter((test) => counts(test) && outcome(test) !== 'pass');

  const unlisted = failing().filter((test) => !(test.id in deviations));
  // A test may also fail because one that it depends on does.
  const causes = (test) => [
    ...(results[test.id] === true ? [] : [test]),
    ...tests.filter((other) => test.depends_on?.includes(other.id)).flatMap(causes),
  ];
  const again = new Set(unlisted.flatMap(causes));
  if (again.size <= SECOND_TRIES) {
    for (const test of again) {
      const first = results[test.id];
      delete results[test.id];
      await run(test);
      say(`tried again alone: ${test.id}: ${told(first)}; then: ${told(results[test.id])}`);
    }
  }

  for (const kind of ['required', 'optimal', 'check']) {
    const outcomes = {};
    for (const test of tests.filter((test) => (test.kind ?? 'required') === kind)) {
      outcomes[outcome(test)] = (outcomes[outcome(test)] ?? 0) + 1;
    }
    say(`${kind}: ${Object.entries(outcomes).map(([name, count]) => `${count} ${name}`).join(', ')}`);
  }
  if (options['list-checks']) {
    const checks = tests.filter((test) => !counts(test))
      .map((test) => ({ id: test.id, outcome: outcome(test), title: test.name }));
    console.log(JSON.stringify(checks, null, 2));
  }

  const why = (test) => outcome(test) === 'dependency failure'
    ? `it depends on ${test.depends_on.join(', ')}`
    : told(results[test.id]);
  const surprises = failing().filter((test) => !(test.id in deviations)).map((test) => (
    `fails and is not listed: ${test.id} (${test.kind ?? 'required'}, ${outcome(test)}): ${why(test)}\n  ${test.name}`
  ));
  for (const [id, reason] of Object.entries(deviations)) {
    const test = tests.find((test) => test.id === id);
    if (!test) surprises.push(`is listed, and there is no such test: ${id}`);
    else if (!counts(test)) surprises.push(`is listed, and cannot fail, since it only asks: ${id}`);
    else if (outcome(test) === 'pass') surprises.push(`is listed, and passes: ${id}`);
    else if (!String(reason ?? '').trim()) surprises.push(`is listed without a reason: ${id}`);
  }
  for (const line of surprises) say(line);
  const [seconds, listed] = [Math.round((Date.now() - since) / 1000), Object.keys(deviations).length];
  say(`${tests.length} tests in ${seconds} s, ${listed} listed in ${list}, ${surprises.length} surprises`);
  return surprises.length === 0;
}

// The tests as the suite's own command line has them.
async function testSets() {
  const { default: sets } = await load(suite, 'tests/index.mjs');
  return newer ? sets : [...sets, (await load(suite, 'tests/surrogate-control.mjs')).default];
}

// The suite's runner goes through its tests in batches, and the old one only once. So we call its tests
// one by one.
async function testRunner(base) {
  const config = await load(engine, 'client/config.mjs');
  config.setBaseUrl(base);
  config.setUseBrowserCache(false);
  // The package asks for a `fetch`, and is from before Node had one. With this mode, which means nothing
  // without a browser's cache, Node's own adds no Cache-Control to what a test wants to send.
  config.setFetch?.((url, init) => (
    fetch(url, { ...init, cache: 'force-cache', signal: AbortSignal.timeout(PATIENCE) })
  ));
  const { makeTest, makeCacheTest, testResults } = await load(engine, 'client/test.mjs');
  return { makeTest: makeTest ?? makeCacheTest, testResults };
}

// The suite's own verdict, as a word. Both shapes agree on the symbols, but only one exports the names.
async function judgement(sets) {
  const { determineTestResult } = await load(engine, newer ? 'lib/results.mjs' : 'lib/display.mjs');
  const words = {
    '-': 'untested', '✅': 'pass', '⛔️': 'fail', '⚠️': 'fail', Y: 'yes', N: 'no', '🔹': 'setup failure',
    '⁉️': 'harness failure', '⚪️': 'dependency failure', '↻': 'retried',
  };
  return (id, results) => words[determineTestResult(sets, id, results)[2]];
}

function told(result) {
  return result === true ? 'passes' : result.join(': ');
}

async function pool(tests, run) {
  const waiting = [...tests];
  const work = async () => {
    while (waiting.length) await run(waiting.shift());
  };
  await Promise.all(Array.from({ length: TOGETHER }, work));
}

// Starts the suite's server and Headwall before it, and says where.
async function startBoth() {
  const port = options.port ?? await freePort();
  // A path instead of a port: nobody else can have it, and no other machine can reach it.
  const socket = join(folder, 'origin');
  start("the suite's server", process.execPath, [join(engine, 'server/server.mjs')], {
    npm_config_protocol: 'http', npm_config_port: socket, npm_config_pidfile: join(folder, 'pid'),
  });
  start('headwall', resolve(options.headwall), ['run', '--config', join(here, 'headwall.yaml')], {
    PORT: port, ORIGIN: socket,
  });
  const base = `http://127.0.0.1:${port}`;
  const end = Date.now() + PATIENCE;
  // What the suite's server says, through Headwall, of a state that it does not have.
  const answers = () => fetch(`${base}/state/none`).then(
    (response) => response.status === 404 && response.headers.has('cache-status'),
    () => false,
  );
  while (!await answers()) {
    stillThere();
    if (Date.now() > end) throw new Error(`nothing answers; they said:\n${started.map(said).join('')}`);
    await sleep(50);
  }
  return base;
}

function said({ log }) {
  return readFileSync(log, 'utf8');
}

function stillThere() {
  const gone = started.find(({ child }) => child.exitCode !== null || child.signalCode !== null);
  if (gone) throw new Error(`${gone.name} has ended; it said:\n${said(gone)}`);
}

function start(name, program, parameters, environment) {
  const log = join(folder, `${started.length}.log`);
  const written = openSync(log, 'w');
  const child = spawn(program, parameters, {
    cwd: folder, env: { ...process.env, ...environment }, stdio: ['ignore', written, written],
  });
  child.on('error', (error) => {
    say(`${name} does not start: ${error.message}`);
    end(1);
  });
  started.push({ child, name, log });
}

// A port below those that the system gives to connections.
async function freePort() {
  for (;;) {
    const port = 15_000 + Math.floor(Math.random() * 15_000);
    const server = createServer();
    const free = await new Promise((done) => {
      server.once('error', () => done(false)).listen(port, '127.0.0.1', () => done(true));
    });
    await new Promise((done) => server.close(done));
    if (free) return String(port);
  }
}
