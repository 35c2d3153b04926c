import { NextResponse } from 'next/server';

export const config = { matcher: '/members/:path*' };

// A page that is the same for all members is static, and Next.js tells every cache to keep it. A hit
// never comes here to be asked who wants it, so what is guarded has to say that it is private.
export function proxy(request) {
  if (!request.cookies.has('member')) return NextResponse.redirect(new URL('/', request.url));
  return NextResponse.next({ headers: { 'Cache-Control': 'private, no-store' } });
}
