// Answers as Express apps give them every day, for docs/explain.md.
import express from 'express';

const app = express();

// What Express says by itself: an ETag, and nothing about how long.
app.get('/hello', (request, response) => response.send('hello'));

// An API for those who have a key; each may keep their own answer for a minute.
app.get('/api/orders', (request, response) => {
  response.set('Cache-Control', 'max-age=60').json({ orders: [] });
});

// One address, two formats.
app.get('/photo', (request, response) => {
  const format = request.accepts(['image/avif', 'image/jpeg']);
  response.set({ 'Cache-Control': 'public, max-age=86400', Vary: 'Accept' }).type(format).send(Buffer.from('a photo'));
});

app.get('/old', (request, response) => response.redirect(301, '/new'));

app.listen(process.env.PORT ?? 3000, '127.0.0.1', (error) => {
  if (error) throw error;
  console.log('listening');
});
