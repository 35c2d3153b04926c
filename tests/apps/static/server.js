// Serves the files of public/, and says for how long each may be kept.
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';

const types = { '.css': 'text/css', '.html': 'text/html; charset=utf-8', '.js': 'text/javascript' };

const server = createServer(async (request, response) => {
  try {
    const { pathname } = new URL(request.url, 'http://localhost');
    // Dot segments are resolved below the root, so nothing outside of public/ has a name.
    const path = normalize(decodeURIComponent(pathname)).replace(/\/$/, '/index.html');
    const content = await readFile(join('public', path));
    const tag = `"${createHash('sha256').update(content).digest('base64url').slice(0, 16)}"`;
    response.setHeader('ETag', tag);
    // A name with a hash in it never changes its content; all others may change with the next deployment.
    const hashed = /\.[0-9a-f]{6,}\./.test(path);
    response.setHeader('Cache-Control', hashed ? 'public, max-age=31536000, immutable' : 'max-age=60');
    response.setHeader('Content-Type', types[extname(path)] ?? 'application/octet-stream');
    if (request.headers['if-none-match'] === tag) response.writeHead(304).end();
    else response.end(request.method === 'HEAD' ? undefined : content);
  } catch {
    response.writeHead(404, { 'Content-Type': 'text/plain', 'Cache-Control': 'no-store' }).end('not here\n');
  }
});

server.listen(process.env.PORT ?? 3000, '127.0.0.1', () => console.log('listening'));
