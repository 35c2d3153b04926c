//! What a replay has found, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::assume::Assumptions;
use super::figures::{Table, bytes, count, span, when};
use super::line::SECOND;
use super::simulation::Simulation;
use super::tally::{Counts, WORDS, Word, percent};
use super::{Account, Named};
use crate::units::Span;

/// All of it.
pub struct Report<'a> {
    /// What the log is called.
    pub name: &'a str,
    /// What was read of it.
    pub account: &'a Account,
    /// The configurations.
    pub plans: &'a [Named],
    /// What came of them, in the same order.
    pub results: &'a [Simulation<'a>],
    /// What was assumed.
    pub assume: &'a Assumptions,
}

impl Report<'_> {
    fn nanos(&self) -> u64 {
        self.account.last.saturating_sub(self.account.first)
    }

    fn per_second(&self, requests: u64) -> f64 {
        requests as f64 * SECOND as f64 / self.nanos().max(SECOND) as f64
    }

    /// For people.
    pub fn text(&self) -> String {
        let account = self.account;
        let mut out = format!(
            "{}: {} requests in {}, from {} to {}\n",
            self.name,
            count(account.requests),
            span(self.nanos()),
            when(account.first),
            when(account.last)
        );
        if account.bad > 0 {
            let _ =
                writeln!(out, "{} of {} lines are no requests; the first:", count(account.bad), count(account.lines));
            for (number, why, beginning) in &account.shown {
                let _ = writeln!(out, "  line {number}: {why}: {beginning}");
            }
        }
        out.push('\n');
        self.totals().print(&mut out);
        for (named, result) in self.plans.iter().zip(self.results) {
            let _ = writeln!(out, "\nRoutes of {}", named.name);
            routes(named, result).print(&mut out);
        }
        out.push_str("\nWhat the log does not say\n");
        for sentence in self.assumptions() {
            let _ = writeln!(out, "- {sentence}");
        }
        out
    }

    fn totals(&self) -> Table {
        let mut table = Table::default();
        let two = self.results.len() == 2;
        let names = self.plans.iter().map(|named| named.name.clone());
        table.row([String::new()].into_iter().chain(names).chain(two.then(|| "change".to_owned())));
        let mut row = |name: &str, cell: &dyn Fn(&Simulation<'_>) -> String, change: &dyn Fn() -> String| {
            let cells = self.results.iter().map(cell);
            table.row([name.to_owned()].into_iter().chain(cells).chain(two.then(change)));
        };
        let less = |of: &dyn Fn(&Simulation<'_>) -> u64| match self.results {
            [a, b, ..] if of(a) > 0 => format!("{:+.1} %", of(b) as f64 * 100.0 / of(a) as f64 - 100.0),
            _ => String::new(),
        };
        let points = |of: &dyn Fn(&Counts) -> f64| match self.results {
            [a, b, ..] => format!("{:+.2}", of(&b.total) - of(&a.total)),
            _ => String::new(),
        };
        let ratio = |of: f64| format!("{of:.2} %");
        let wide = count(self.account.requests).len();
        row("hit ratio", &|r| ratio(r.total.hit_ratio()), &|| points(&Counts::hit_ratio));
        row("byte hit ratio", &|r| ratio(r.total.byte_hit_ratio()), &|| points(&Counts::byte_hit_ratio));
        for (word, name) in WORDS {
            let of = move |result: &Simulation<'_>| result.total.words[word as usize];
            let share = |result: &Simulation<'_>| ratio(percent(of(result), result.total.requests));
            row(&format!("  {name}"), &|r| format!("{:>wide$}  {:>8}", count(of(r)), share(r)), &|| less(&of));
        }
        row("origin requests", &|r| count(r.total.origin), &|| less(&|r| r.total.origin));
        row("  a second, mean", &|r| format!("{:.2}", self.per_second(r.total.origin)), &String::new);
        row("  most in a minute", &|r| count(r.timeline.peak_minute), &|| less(&|r| r.timeline.peak_minute));
        row("bytes to clients", &|r| bytes(r.total.bytes), &String::new);
        row("bytes from the origin", &|r| bytes(r.total.bytes_origin), &|| less(&|r| r.total.bytes_origin));
        row("evictions", &|r| count(r.usage().evicted), &|| less(&|r| r.usage().evicted));
        row("stored at the end", &|r| count(r.usage().entries), &|| less(&|r| r.usage().entries));
        row("  bytes", &|r| bytes(r.usage().bytes), &|| less(&|r| r.usage().bytes));
        table
    }

    /// What stands behind the figures, a sentence each.
    fn assumptions(&self) -> Vec<String> {
        let account = self.account;
        let mut told = Vec::new();
        let share = |part: u64| format!("{:.1} %", percent(part, account.requests));
        for (named, result) in self.plans.iter().zip(self.results) {
            let sources = &result.sources;
            let name = if self.plans.len() > 1 { format!("{}: ", named.name) } else { String::new() };
            if sources.assumed > 0 {
                told.push(format!(
                    "{name}for {} of the requests, how long a response is fresh is assumed: {}",
                    share(sources.assumed),
                    self.fresh()
                ));
            }
            if sources.nowhere > 0 {
                told.push(format!(
                    "{name}for {} of the requests, on routes that respect the origin, nothing says how long a response \
                     is fresh: it is taken as not to be stored; --fresh says otherwise",
                    share(sources.nowhere)
                ));
            }
            if sources.lengths > 0 {
                told.push(format!(
                    "{name}for {} of the requests (304) the length is that of what was seen before",
                    share(sources.lengths)
                ));
            }
            if sources.parts > 0 {
                told.push(format!(
                    "{name}for {} of the requests (206, 416) which part was asked for: nothing of it is kept here, other \
                     than in the proxy",
                    share(sources.parts)
                ));
            }
            if sources.given_up > 0 {
                told.push(format!(
                    "{name}{} requests that clients gave up are taken to bring nothing in",
                    count(sources.given_up)
                ));
            }
        }
        if self.assume.validators {
            told.push("responses have an ETag, and a stale one of the same length is confirmed by a 304".into());
        }
        if account.hostless > 0 {
            told.push(format!(
                "the host of {} of the requests is taken as `{}`",
                share(account.hostless),
                self.assume.host
            ));
        }
        if account.untimed > 0 {
            told.push(format!(
                "how long {} of the requests took: nobody waits for another's answer there",
                share(account.untimed)
            ));
        }
        if account.whole_seconds > 0 {
            told.push(format!(
                "when in its second a request came, for {} of them: they are spread over it",
                share(account.whole_seconds)
            ));
        }
        if account.late > 0 {
            told.push(format!(
                "{} lines stood too late for their time and are taken as they came",
                count(account.late)
            ));
        }
        told.push(
            "Cookie, Set-Cookie, Vary and what else is not in the log is taken as absent; what plugins answer \
             themselves is taken for an answer of the origin"
                .into(),
        );
        told
    }

    fn fresh(&self) -> String {
        let one = |fresh: &super::Fresh| {
            let span = fresh.lifetime.map_or_else(|| "not stored".to_owned(), |span| Span(span).to_string());
            if fresh.prefix.is_empty() { span } else { format!("{}* {span}", fresh.prefix) }
        };
        self.assume.fresh.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let account = self.account;
        let bad: Vec<_> = account
            .shown
            .iter()
            .map(|(number, why, beginning)| json!({ "line": number, "why": why, "begins": beginning }))
            .collect();
        let results: Vec<_> = self
            .plans
            .iter()
            .zip(self.results)
            .map(|(named, result)| {
                let routes = named_counts(named, result);
                let routes: Vec<_> = routes
                    .map(|(name, counts)| {
                        let mut value = self.counts(counts);
                        value["route"] = name.into();
                        value
                    })
                    .collect();
                let (usage, sources) = (result.usage(), &result.sources);
                let mut value = self.counts(&result.total);
                value["config"] = named.name.clone().into();
                value["origin_peak_minute"] = result.timeline.peak_minute.into();
                value["evicted"] = usage.evicted.into();
                value["stored"] = json!({ "entries": usage.entries, "bytes": usage.bytes });
                value["freshness"] = json!({
                    "route": sources.route, "log": sources.log, "assumed": sources.assumed, "nowhere": sources.nowhere,
                });
                value["routes"] = routes.into();
                value
            })
            .collect();
        json!({
            "log": self.name,
            "lines": account.lines,
            "requests": account.requests,
            "from": when(account.first),
            "to": when(account.last),
            "seconds": self.nanos() as f64 / SECOND as f64,
            "not_requests": { "lines": account.bad, "first": bad },
            "assumed": self.assumptions(),
            "results": results,
        })
    }

    fn counts(&self, counts: &Counts) -> Value {
        let words: serde_json::Map<_, _> =
            WORDS.iter().map(|(word, name)| ((*name).to_owned(), counts.words[*word as usize].into())).collect();
        json!({
            "requests": counts.requests,
            "hit_ratio": counts.hit_ratio(),
            "byte_hit_ratio": counts.byte_hit_ratio(),
            "cache": words,
            "origin_requests": counts.origin,
            "origin_per_second": self.per_second(counts.origin),
            "bytes": counts.bytes,
            "bytes_from_origin": counts.bytes_origin,
        })
    }
}

/// The routes that were asked, with their names.
fn named_counts<'a>(named: &'a Named, result: &'a Simulation<'_>) -> impl Iterator<Item = (&'a str, &'a Counts)> {
    let names = named.plan.router.routes.iter().map(|route| &*route.name).chain(["-"]);
    names.zip(&result.routes).filter(|(_, counts)| counts.requests > 0)
}

fn routes(named: &Named, result: &Simulation<'_>) -> Table {
    let mut table = Table::default();
    let heads = ["", "requests", "hit ratio", "byte hit ratio", "bypass", "origin requests", "from the origin"];
    table.row(heads.map(str::to_owned));
    for (name, counts) in named_counts(named, result) {
        table.row([
            if name == "-" { "(no route)".to_owned() } else { name.to_owned() },
            count(counts.requests),
            format!("{:.2} %", counts.hit_ratio()),
            format!("{:.2} %", counts.byte_hit_ratio()),
            count(counts.words[Word::Bypass as usize]),
            count(counts.origin),
            bytes(counts.bytes_origin),
        ]);
    }
    table
}
