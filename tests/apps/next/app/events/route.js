// A GET listens, a POST is an event for all who do, and says how many that are.
const listeners = (globalThis.listeners ??= new Set());
const encoder = new TextEncoder();

export function GET() {
  let leave;
  const stream = new ReadableStream({
    start(controller) {
      const send = (text) => controller.enqueue(encoder.encode(text));
      send('data: welcome\n\n');
      listeners.add(send);
      // A proxy takes a connection that is quiet for too long for a dead one.
      const quiet = setInterval(() => send(': still here\n\n'), 30_000);
      leave = () => {
        clearInterval(quiet);
        listeners.delete(send);
      };
    },
    cancel: () => leave(),
  });
  return new Response(stream, { headers: { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' } });
}

export async function POST(request) {
  const text = await request.text();
  for (const send of listeners) send(`data: ${text}\n\n`);
  return new Response(String(listeners.size));
}
