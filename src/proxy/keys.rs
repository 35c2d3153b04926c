//! Under which keys this exchange's responses stand, and which of them a change takes out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::{CONTENT_LOCATION, HOST, LOCATION};
use http::{HeaderMap, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;

use super::context::Ctx;
use super::forward::FORWARDED_HOST;
use crate::cache::Cache;
use crate::cache::key::Parts;
use crate::cache::policy;
use crate::fields::query::Rules;
use crate::fields::{authority, reference};
use crate::route::Destination;

/// What of a request goes into its key.
pub struct Names<'a> {
    scheme: &'a str,
    host: String,
    forwarded_host: Vec<u8>,
    target: &'a [u8],
    upstream: &'a str,
    selector: &'a str,
}

impl<'a> Names<'a> {
    /// By the route of this exchange.
    pub fn of(request: &'a RequestHeader, ctx: &'a Ctx) -> Result<Self> {
        let Some(route) = &ctx.route else {
            return Error::e_explain(ErrorType::InternalError, "a key without a route");
        };
        let Destination::Proxy(upstream) = &route.destination else {
            return Error::e_explain(ErrorType::InternalError, "a key without an upstream");
        };
        Ok(Self::by(request, ctx.exchange.scheme, &upstream.name, &route.selector))
    }

    fn by(request: &'a RequestHeader, scheme: &'a str, upstream: &'a str, selector: &'a str) -> Self {
        let lines: Vec<_> = request.headers.get_all(&FORWARDED_HOST).iter().map(|line| line.as_bytes()).collect();
        Names {
            scheme,
            host: host(&request.headers),
            forwarded_host: lines.join(&b'\n'),
            target: request.raw_path(),
            upstream,
            selector,
        }
    }

    /// As the key takes them.
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            scheme: self.scheme,
            host: &self.host,
            forwarded_host: &self.forwarded_host,
            target: self.target,
            upstream: self.upstream,
            selector: self.selector,
        }
    }
}

/// The `Host` field in lower case.
pub fn host(fields: &HeaderMap) -> String {
    let host = fields.get(HOST).map(|host| host.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    String::from_utf8(host).unwrap_or_else(|other| String::from_utf8_lossy(other.as_bytes()).into_owned())
}

/// A successful unsafe request changes what is stored under its target, and under what its response names
/// as the place of the change, if that is on the same host (RFC 9111 §4.4).
pub fn invalidate(cache: &Cache, request: &RequestHeader, response: &ResponseHeader, ctx: &Ctx) {
    if !policy::invalidates(&request.method, response.status) {
        return;
    }
    if ctx.upstream().is_none() {
        return;
    }
    let named = [&LOCATION, &CONTENT_LOCATION].into_iter().filter_map(|name| response.headers.get(name));
    changed(request, named, ctx.exchange.scheme, &ctx.snapshot.plan.selectors, |parts| cache.invalidate_target(parts));
}

/// All that a change at this request's target takes out: the target and what these fields name on the same host, by way
/// of each of these upstreams and selectors.
pub fn changed<'a>(
    request: &RequestHeader,
    named: impl Iterator<Item = &'a HeaderValue>,
    scheme: &str,
    selectors: &BTreeMap<String, Vec<(String, Rules)>>,
    mut take_out: impl FnMut(&Parts<'_>),
) {
    let said = host(&request.headers);
    let target = String::from_utf8_lossy(request.raw_path());
    let mut targets = vec![target.to_string()];
    targets.extend(named.filter_map(|value| reference::local(value.to_str().ok()?, &said, &target)));
    targets.dedup();
    // The same host may be written with the port that goes without saying (RFC 9110 §4.2.3).
    let plain = authority::plain(&said);
    let mut hosts = vec![format!("{plain}:80"), format!("{plain}:443"), plain, said];
    hosts.dedup();
    // The same target may be stored by way of other routes and upstreams too.
    for (upstream, selectors) in selectors {
        for (selector, query) in selectors {
            let names = Names::by(request, scheme, upstream, selector);
            for target in &targets {
                for host in &hosts {
                    // As it was asked for too: that is how it stands where the rules were others once.
                    take_out(&Parts { host, target: target.as_bytes(), ..names.parts() });
                    if let Cow::Owned(form) = query.apply(target) {
                        take_out(&Parts { host, target: form.as_bytes(), ..names.parts() });
                    }
                }
            }
        }
    }
}
