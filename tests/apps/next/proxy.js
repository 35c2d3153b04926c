import { NextResponse } from 'next/server';

export const config = { matcher: ['/members/:path*', '/offer'] };

// A page that is the same for all members is static, and Next.js tells every cache to keep it. A hit
// never comes here to be asked who wants it, so what is guarded has to say that it is private.
export function proxy(request) {
  if (request.nextUrl.pathname === '/offer') return offer();
  if (!request.cookies.has('member')) return NextResponse.redirect(new URL('/', request.url));
  return NextResponse.next({ headers: { 'Cache-Control': 'private, no-store' } });
}

// Puts a visitor into one half of a test. Such a response is for this visitor, whatever the page says.
function offer() {
  const response = NextResponse.next();
  response.cookies.set('half', Math.random() < 0.5 ? 'a' : 'b');
  return response;
}
