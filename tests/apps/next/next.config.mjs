export default {
  // Headwall compresses, and keeps one page for all clients.
  compress: false,
  // Until how old a page may be used while it is generated anew. Next.js takes `revalidate` off and
  // writes the rest into stale-while-revalidate; without this line that is a year.
  expireTime: 3660,
  // Processes that share a build read each other's half-written pages otherwise.
  experimental: { isrFlushToDisk: false },
};
