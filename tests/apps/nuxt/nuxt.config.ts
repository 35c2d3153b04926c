export default defineNuxtConfig({
  compatibilityDate: '2025-07-15',
  telemetry: false,
  routeRules: {
    // The same for everybody: fresh for a minute, then usable for ten more while it is rendered anew.
    // Without staleMaxAge Nitro writes a stale-while-revalidate without seconds, which no cache can obey.
    '/news': { swr: 60, cache: { staleMaxAge: 600 } },
    // Speaks to hosting platforms alone: nothing is kept here.
    '/archive': { isr: 60 },
  },
});
