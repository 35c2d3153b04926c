//! Why the cache did what it did: one variant for each reason, with the sentence it stands on.
//!
//! The policy answers with a rule, never with a bool; `Cache-Status`, metrics and
//! logs tell it by its token.

/// Why the cache did what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The method is not one whose responses we reuse.
    Method,
    /// The request asks for another protocol.
    Upgrade,
    /// The request has content, which the key does not know.
    RequestContent,
    /// The request said `no-store`.
    RequestNoStore,
    /// The request has a `Cookie`, and the route caches by force.
    Cookie,
    /// The request carries credentials, and nothing says that the response is for all.
    Authorization,
    /// The response said `no-store`.
    NoStore,
    /// The response said `private`.
    Private,
    /// The response sets a cookie.
    SetCookie,
    /// The response varies by more than fields.
    VaryStar,
    /// A request field that the origin sees and the key does not know may have chosen the response.
    UnkeyedField,
    /// The path may mean another thing to the origin, which did not itself say how long the response is fresh.
    AmbiguousPath,
    /// A request field names another host, scheme or target than the request; it was taken off.
    OtherTarget,
    /// A request field asks for another method; it was taken off.
    MethodOverride,
    /// An event stream has no end.
    EventStream,
    /// Part of a representation is not the whole.
    Partial,
    /// A status that says nothing to store.
    Status,
    /// A status that blames the request; by force it would be stored for requests that are not to blame.
    RequestFault,
    /// Nothing says how long it is fresh.
    NoFreshness,
    /// Nothing says how long it is fresh, and for a request with `Cookie` or credentials we do not guess.
    NoHeuristic,
    /// It may be reused only after validation, and has nothing to validate with.
    NoValidator,
    /// It has more tags than are listed, so a purge could not find it.
    TooManyTags,
    /// Longer than `max_object`, or than `max_unsized` without a length.
    TooLarge,
    /// Too many bytes are arriving at once.
    FillsFull,
    /// The 304 names another response than the one that is stored.
    WrongValidator,
    /// The 304 says that other fields choose the response than those it was stored by.
    VaryChanged,
    /// It has another `No-Vary-Search` than the response that its key was made by.
    SearchChanged,
    /// The target was changed while the response was on its way.
    Invalidated,
    /// Stored: the origin said how long it is fresh.
    Explicit,
    /// Stored: fresh for a tenth of its age.
    Heuristic,
    /// Stored: the route's `ttl` says so.
    Forced,
}

impl Rule {
    /// The sentence it stands on.
    pub fn section(self) -> &'static str {
        match self {
            Rule::Method => "RFC 9111 §4",
            Rule::Upgrade => "RFC 9110 §7.8",
            Rule::RequestContent => "RFC 9110 §9.3.1",
            Rule::RequestNoStore => "RFC 9111 §5.2.1.5",
            Rule::Cookie | Rule::Forced => "the route's `cache` settings",
            Rule::Authorization => "RFC 9111 §3.5",
            Rule::NoStore => "RFC 9111 §5.2.2.5",
            Rule::Private => "RFC 9111 §5.2.2.7",
            Rule::SetCookie => "RFC 9111 §7.3",
            Rule::VaryStar | Rule::UnkeyedField => "RFC 9111 §4.1",
            Rule::AmbiguousPath | Rule::OtherTarget => "RFC 9111 §2",
            Rule::MethodOverride => "RFC 9110 §9.1",
            Rule::EventStream => "WHATWG HTML §9.2",
            Rule::Partial => "RFC 9111 §3.3",
            Rule::Status => "RFC 9111 §3",
            Rule::RequestFault => "RFC 9110 §15.5",
            Rule::NoFreshness => "RFC 9111 §4.2.1",
            Rule::NoHeuristic => "RFC 9111 §4.2.2",
            Rule::NoValidator => "RFC 9111 §4.3",
            Rule::TooLarge | Rule::FillsFull => "the `cache` settings",
            Rule::TooManyTags => "the Cache-Tag, Surrogate-Key and Cache-Groups fields",
            Rule::WrongValidator | Rule::VaryChanged => "RFC 9111 §4.3.4",
            Rule::SearchChanged => "the No-Vary-Search field",
            Rule::Invalidated => "RFC 9111 §4.4",
            Rule::Explicit => "RFC 9111 §4.2.1",
            Rule::Heuristic => "RFC 9111 §4.2.2",
        }
    }

    /// A token for `Cache-Status`, metrics and logs.
    pub fn token(self) -> &'static str {
        match self {
            Rule::Method => "method",
            Rule::Upgrade => "upgrade",
            Rule::RequestContent => "request-content",
            Rule::RequestNoStore => "request-no-store",
            Rule::Cookie => "cookie",
            Rule::Authorization => "authorization",
            Rule::NoStore => "no-store",
            Rule::Private => "private",
            Rule::SetCookie => "set-cookie",
            Rule::VaryStar => "vary-star",
            Rule::UnkeyedField => "unkeyed-field",
            Rule::AmbiguousPath => "ambiguous-path",
            Rule::OtherTarget => "other-target",
            Rule::MethodOverride => "method-override",
            Rule::EventStream => "event-stream",
            Rule::Partial => "partial",
            Rule::Status => "status",
            Rule::RequestFault => "request-fault",
            Rule::NoFreshness => "no-freshness",
            Rule::NoHeuristic => "no-heuristic",
            Rule::NoValidator => "no-validator",
            Rule::TooManyTags => "too-many-tags",
            Rule::TooLarge => "too-large",
            Rule::FillsFull => "fills-full",
            Rule::WrongValidator => "wrong-validator",
            Rule::VaryChanged => "vary-changed",
            Rule::SearchChanged => "search-changed",
            Rule::Invalidated => "invalidated",
            Rule::Explicit => "explicit",
            Rule::Heuristic => "heuristic",
            Rule::Forced => "forced",
        }
    }

    /// Whether a 304 was not for what is stored.
    pub fn of_a_304(self) -> bool {
        matches!(self, Rule::WrongValidator | Rule::VaryChanged)
    }

    /// Whether the next response to this target will probably be refused as well.
    ///
    /// What depends on who asks says nothing about the next one.
    pub fn lasts(self) -> bool {
        matches!(
            self,
            Rule::NoStore
                | Rule::Private
                | Rule::SetCookie
                | Rule::VaryStar
                | Rule::AmbiguousPath
                | Rule::SearchChanged
                | Rule::EventStream
                | Rule::NoFreshness
                | Rule::NoValidator
                | Rule::TooManyTags
                | Rule::TooLarge
        )
    }
}
