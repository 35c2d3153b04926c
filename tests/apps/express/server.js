// A shop: assets, an API, an event stream, and pages behind a session.
import express from 'express';
import session from 'express-session';

const app = express();
// Headwall says who asked; without this line every visitor has the address of the proxy.
app.set('trust proxy', 'loopback');

// Names with a hash in them never change their content.
app.use('/assets', express.static('assets', { immutable: true, maxAge: '1y', fallthrough: false }));

// The same for everybody: a shared cache may keep it for a minute, and for ten more while it asks again.
const products = ['rope'];
app.get('/api/products', (request, response) => {
  response.set('Cache-Control', 'public, s-maxage=60, stale-while-revalidate=600').json(products);
});
app.post('/api/products', express.json(), (request, response) => {
  products.push(request.body.name);
  response.status(201).json(request.body);
});

// A GET listens, an order is an event for all who do, and is told how many that are.
const listeners = new Set();
app.get('/events', (request, response) => {
  response.set({ 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
  response.write('data: welcome\n\n');
  listeners.add(response);
  // A proxy takes a connection that is quiet for too long for a dead one.
  const quiet = setInterval(() => response.write(': still here\n\n'), 30_000);
  response.on('close', () => {
    clearInterval(quiet);
    listeners.delete(response);
  });
});
app.post('/orders', express.json(), (request, response) => {
  for (const listener of listeners) listener.write(`data: ${request.body.name}\n\n`);
  response.send(String(listeners.size));
});

// From here on pages belong to one visitor.
app.use(session({ secret: process.env.SESSION_SECRET, resave: false, saveUninitialized: false }));
app.post('/login', express.json(), (request, response) => {
  request.session.name = request.body.name;
  response.sendStatus(204);
});
app.get('/account', (request, response) => {
  response.set('Cache-Control', 'private, no-store').send(`account of ${request.session.name ?? 'nobody'}`);
});
// Somebody forgot Cache-Control here; the first visit sets a cookie.
app.get('/basket', (request, response) => {
  request.session.visits = (request.session.visits ?? 0) + 1;
  response.send(`visit ${request.session.visits} of ${request.sessionID}`);
});

app.listen(process.env.PORT ?? 3000, '127.0.0.1', (error) => {
  if (error) throw error;
  console.log('listening');
});
