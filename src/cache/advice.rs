//! What a rule means in one sentence, and what to change where it is in the way.

use super::rule::Rule;

/// What to change; an empty text where there is nothing to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// In the app.
    pub app: &'static str,
    /// In the configuration.
    pub file: &'static str,
}

const FOR_ALL: &str = "if it is the same for everybody, say so and for how long: `Cache-Control: s-maxage=60`";
const BY_FORCE: &str = "if it is the same for everybody, `mode: force` with a `ttl` stores it whatever the app says";
const HOW_LONG: &str = "say how long it may be kept: `Cache-Control: s-maxage=60` (Next.js: `export const revalidate = 60`; \
                        Nuxt: `routeRules` with `swr: 60`; express.static: `maxAge`)";

impl Rule {
    /// What it means.
    pub fn meaning(self) -> &'static str {
        match self {
            Rule::Method => "only answers to GET and HEAD are kept",
            Rule::Upgrade => "the request asks for another protocol",
            Rule::RequestContent => "the GET has content, which the key does not know",
            Rule::RequestNoStore => "the request says `no-store`, or opens a quote that nothing closes",
            Rule::Cookie => "the request has a cookie, and by force a page for one would be stored for all",
            Rule::Authorization => "the request has credentials, and nothing says that the answer is for all",
            Rule::NoStore => "the response says `no-store`, or opens a quote that nothing closes",
            Rule::Private => "the response says `private`: it is for one person",
            Rule::SetCookie => "the response sets a cookie, which is for one person",
            Rule::VaryStar => "the response varies by more than can be compared",
            Rule::UnkeyedField => "a request field that the key does not know may have chosen the response",
            Rule::AmbiguousPath => {
                "the path may mean another thing to the app, which does not say how long it is fresh"
            }
            Rule::OtherTarget => "a request field names another host, scheme or path; it was taken off",
            Rule::MethodOverride => "a request field asks for another method; it was taken off",
            Rule::EventStream => "an event stream has no end",
            Rule::Partial => "it is a part of a whole",
            Rule::Status => "the status says nothing to store",
            Rule::RequestFault => "the app blames this very request, and the next one may be without fault",
            Rule::NoFreshness => "nothing says how long it is fresh",
            Rule::NoHeuristic => "nothing says how long it is fresh, and with a cookie or credentials nobody guesses",
            Rule::NoValidator => "it may be reused only after validation, and has nothing to validate with",
            Rule::TooManyTags => "it has more tags than are listed, so no purge would find it by the rest",
            Rule::TooLarge => "it is longer than `max_object`, or than `max_unsized` without a length",
            Rule::FillsFull => "too many bytes are arriving at once",
            Rule::WrongValidator => "the 304 names another response than the one that is stored",
            Rule::VaryChanged => "the 304 says that other fields choose the response",
            Rule::SearchChanged => "its `No-Vary-Search` is not that of the other responses of this path",
            Rule::Invalidated => "the target was changed while the response was on its way",
            Rule::Explicit => "the response says how long it is fresh",
            Rule::Heuristic => "a tenth of the time since `Last-Modified` is taken for how long it is fresh",
            Rule::Forced => "the route's `ttl` says how long it is kept",
        }
    }

    /// What to change if this is not what is wanted.
    pub fn advice(self) -> Advice {
        let (app, file) = match self {
            Rule::Method
            | Rule::Upgrade
            | Rule::EventStream
            | Rule::Partial
            | Rule::Invalidated
            | Rule::Explicit
            | Rule::Forced => ("", ""),
            Rule::RequestContent => ("ask by the query, or with POST", ""),
            Rule::RequestNoStore => ("", "`client_directives: ignore` lets clients no longer say so"),
            Rule::Cookie => (
                "set cookies for the paths that need them (`Path=/account`)",
                "`cookies: ignore` takes them off and stores one page for all; `key: { cookies: [NAME] }` names those that choose",
            ),
            Rule::Authorization => (
                "if whoever may see it sees the same, say so: `Cache-Control: public`, or `s-maxage=60`",
                "in `mode: force` such requests always go to the app; in `mode: respect` the app decides",
            ),
            Rule::NoStore | Rule::Private => (FOR_ALL, BY_FORCE),
            Rule::SetCookie => (
                "set it where a session begins, not on every page (express-session: `saveUninitialized: false`)",
                "`set_cookie: strip` if nobody needs it here; `set_cookie: { store: [NAME] }` if it is the same for everybody",
            ),
            Rule::VaryStar => ("name in `Vary` the request fields that choose the response", ""),
            Rule::UnkeyedField => {
                ("name the field in `Vary`, or say `public` if it does not matter", "`key: { headers: [NAME] }`")
            }
            Rule::AmbiguousPath => ("link to it by a plain path, or say `Cache-Control: s-maxage=60`", ""),
            Rule::OtherTarget => (
                "",
                "if a proxy of yours tells host and scheme, name it under `trust.proxies`: its `X-Forwarded-Host` and `-Proto` are believed, and no other such field",
            ),
            Rule::MethodOverride => ("ask by the method itself", ""),
            Rule::Status | Rule::RequestFault => ("", "name the status in `ttl`, as in `ttl: { 200: 1m, 400: 10s }`"),
            Rule::NoFreshness | Rule::NoHeuristic => (HOW_LONG, BY_FORCE),
            Rule::NoValidator => ("send an `ETag`", ""),
            Rule::TooManyTags => ("send at most 1000 tags, of 16 KiB in all", ""),
            Rule::TooLarge => ("send `Content-Length`", "raise `cache.max_object` or `cache.max_unsized`"),
            Rule::FillsFull => ("", "raise `cache.fills`"),
            Rule::WrongValidator => ("send with a 304 the `ETag` of the response that it confirms", ""),
            Rule::VaryChanged => ("send with a 304 the `Vary` of the 200", ""),
            Rule::SearchChanged => ("send the same `No-Vary-Search` with every response of a path", ""),
            Rule::Heuristic => ("say how long, so that nobody has to guess: `Cache-Control: max-age=600`", ""),
        };
        Advice { app, file }
    }
}
