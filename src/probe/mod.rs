//! `headwall probe`: whether what one visitor sends comes back to another one.
//!
//! For each row of [`table`] a first visitor sends a canary to an address that nobody else has asked for, and a second one asks
//! for the same address plainly. A canary that the second one gets was kept by something in between, without being part of
//! what it is kept under.

mod report;
mod table;
mod visitor;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, Uri};

use report::{Finding, Plain, Report, Verdict};
use table::{ROWS, Row, Way};
use visitor::{Answer, Request, Visitors};

use crate::terminal::{print, printable};

/// Cookies of the site that a canary is put into.
const COOKIES: usize = 8;
/// After so many rows in succession without an answer, the others are not tried.
const SILENT: usize = 3;
/// After that, the rows that are left are not tried.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Something came back.
const LEAKED: u8 = 1;
/// It could not ask.
const NOT_ASKED: u8 = 3;

/// What a probe is told.
#[derive(Args)]
pub struct Probe {
    /// An address of a site of your own, with http:// or https://.
    #[arg(value_name = "URL", value_parser = url)]
    url: Uri,
    /// A field that all visitors send, such as credentials for a staging site. May be given several times.
    #[arg(short = 'H', long = "header", value_name = "FIELD: VALUE", value_parser = field)]
    fields: Vec<(HeaderName, HeaderValue)>,
    /// The parameter that makes each address one that nobody else asks for.
    #[arg(long, value_name = "NAME", default_value = "headwall-probe", value_parser = parameter)]
    bust: String,
    /// Do not verify certificates: for a staging site of your own.
    #[arg(long)]
    insecure: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn url(text: &str) -> Result<Uri, String> {
    let uri = text.split('#').next().unwrap_or_default().parse::<Uri>().map_err(|error| error.to_string())?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("credentials do not belong into an address, which is shown; give them with -H".to_owned());
    }
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err("an address begins with http:// or https://".to_owned()),
    }
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a field is written as `Name: value`")?;
    let name: HeaderName = name.trim().parse().map_err(|_| format!("`{}` is not a field name", name.trim()))?;
    if matches!(name, CONNECTION | CONTENT_LENGTH | EXPECT | TE | TRAILER | TRANSFER_ENCODING | UPGRADE) {
        return Err(format!("`{name}` is not for those who send a request without content"));
    }
    Ok((name, value.trim().parse().map_err(|_| "this cannot be a field's value".to_owned())?))
}

fn parameter(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    if plain { Ok(text.to_owned()) } else { Err("letters, digits, `-`, `_`, `.` and `~`".to_owned()) }
}

/// A word that nobody has used before.
fn canary() -> Result<String, String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes.iter().fold("hwp".to_owned(), |word, byte| format!("{word}{byte:02x}")))
}

/// Probes, and writes the report to standard output.
pub fn run(probe: &Probe) -> ExitCode {
    let mut inquiry = Inquiry { probe, visitors: Visitors::new(probe.fields.clone(), probe.insecure) };
    // The plain ones, and for each row two visitors and two who look whether it stays and whether the site is like that
    // anyway.
    let most = 3 + ROWS.len() * 4;
    let _ = writeln!(io::stderr(), "headwall: probing {} with at most {most} GET requests", probe.url);
    let report = match inquiry.whole() {
        Ok(report) => report,
        Err(message) => {
            progress("");
            let _ = writeln!(io::stderr(), "headwall: {}", printable(&message));
            return ExitCode::from(NOT_ASKED);
        }
    };
    let text = if probe.json { format!("{:#}\n", report.json()) } else { report.text() };
    if let Err(error) = print(&text) {
        let _ = writeln!(io::stderr(), "headwall: standard output: {error}");
        return ExitCode::from(NOT_ASKED);
    }
    match () {
        () if report.leaks() > 0 => ExitCode::from(LEAKED),
        () if report.not_asked() > 0 => ExitCode::from(NOT_ASKED),
        () => ExitCode::SUCCESS,
    }
}

struct Inquiry<'a> {
    probe: &'a Probe,
    visitors: Visitors,
}

impl Inquiry<'_> {
    fn whole(&mut self) -> Result<Report, String> {
        let (plain, first, second) = self.plain()?;
        let mut findings = Vec::new();
        findings.extend(passed_on(&first, &second));
        let (started, mut silent) = (Instant::now(), 0);
        for (number, row) in ROWS.iter().enumerate() {
            progress(&format!("{} of {}: {}", number + 1, ROWS.len(), row.name()));
            if row.way == Way::LearnedCookies && plain.cookies.is_empty() {
                continue;
            }
            let stop = match () {
                () if silent >= SILENT => Some("the rows before it had no answer"),
                () if started.elapsed() >= PATIENCE => Some("a quarter of an hour is over"),
                () => None,
            };
            let finding = match stop {
                Some(why) => {
                    Finding { name: row.name(), verdict: Verdict::NotAsked(why.to_owned()), advice: row.advice }
                }
                None => self.row(row, &plain)?,
            };
            silent = if matches!(finding.verdict, Verdict::NotAsked(_)) { silent + 1 } else { 0 };
            findings.push(finding);
        }
        progress("");
        Ok(Report { url: self.probe.url.to_string(), requests: self.visitors.sent, plain, findings })
    }

    /// Three plain visitors: one for himself, and two at one address.
    fn plain(&mut self) -> Result<(Plain, [Answer; 2], Answer), String> {
        let mut ask = |url: String| {
            let asked = self.visitors.ask(&Request { url: url.clone(), ..Request::default() });
            asked.map_err(|error| format!("{url}: {error}"))
        };
        let alone = ask(self.probe.place(&canary()?, ""))?;
        let place = self.probe.place(&canary()?, "");
        let first = ask(place.clone())?;
        let second = ask(place)?;
        if let Some(hit) = first.hit() {
            return Err(format!(
                "a new `{}` is no new address for the cache ({hit}): the entries of real visitors would be touched; name a \
                 parameter that counts with --bust",
                self.probe.bust
            ));
        }
        // What is no token cannot be sent back.
        let token = |name: &String| name.parse::<HeaderName>().is_ok();
        let cookies = alone.cookies().into_iter().map(|(name, _)| name).filter(token).take(COOKIES).collect();
        let plain = Plain {
            status: second.status,
            length: second.content.len(),
            hit: second.hit(),
            coding: second.coding(),
            location: second.fields.get("location").map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned()),
            cookies,
        };
        Ok((plain, [alone, first], second))
    }

    /// One row: a visitor with the canary, and one without.
    fn row(&mut self, row: &Row, plain: &Plain) -> Result<Finding, String> {
        let (canary, bust) = (canary()?, canary()?);
        // What stands behind a colon, so that no other number is taken for it.
        let port = 20_000 + u32::from_str_radix(&canary[3..7], 16).unwrap_or(0) % 40_000;
        let other = if self.probe.url.scheme_str() == Some("https") { "http" } else { "https" };
        let form = |form: &str| {
            form.replace("{canary}", &canary).replace("{port}", &port.to_string()).replace("{other}", other)
        };
        let place = self.probe.place(&bust, "");
        let mut request = Request { url: place.clone(), ..Request::default() };
        let mut fields = vec![];
        let content = format!("probe={canary}");
        match row.way {
            Way::Field(name, value) => fields.push((name, form(value))),
            Way::Cookie(name) => fields.push(("Cookie", format!("{name}={canary}"))),
            Way::LearnedCookies => {
                let pairs: Vec<_> = plain.cookies.iter().map(|name| format!("{name}={canary}")).collect();
                fields.push(("Cookie", pairs.join("; ")));
            }
            Way::Query(name) => request.url = self.probe.place(&bust, &format!("{name}={canary}")),
            Way::Content => request.content = Some(&content),
            Way::Oversize => fields.push(("X-Probe", canary.repeat(12 * 1024 / canary.len()))),
        }
        for (name, value) in fields {
            let name: HeaderName = name.parse().map_err(|_| format!("`{name}` is not a field name"))?;
            request.fields.push((name, value.parse().map_err(|_| "this cannot be a field's value".to_owned())?));
        }
        let needle = if matches!(row.way, Way::Field(_, "{port}")) { format!(":{port}") } else { canary.clone() };
        // What resets the connection is an answer too, if the second one gets another than usual.
        let first = self.visitors.ask(&request);
        let unanswered = first.as_ref().err().filter(|_| row.way != Way::Oversize).cloned();
        let first = first.unwrap_or_default();
        let finding = |verdict| Finding { name: row.name(), verdict, advice: row.advice };
        let second = match self.visitors.ask(&Request { url: place.clone(), ..Request::default() }) {
            Ok(second) => second,
            Err(error) => return Ok(finding(Verdict::NotAsked(error))),
        };
        let places = second.places(&needle);
        if !places.is_empty() {
            let what = format!("{} came back in {}", sent(row), places.join(", "));
            return Ok(finding(Verdict::Leak { what, hit: second.hit() }));
        }
        let changed =
            |answer: &Answer| answer.status != plain.status || (answer.content.is_empty() && plain.length > 0);
        let spoilt = first.status != 0 && first.status == second.status && changed(&first) && changed(&second);
        let theirs = second.cookies();
        let shared = first.cookies().into_iter().find(|cookie| !cookie.1.is_empty() && theirs.contains(cookie));
        if spoilt || shared.is_some() {
            // Unless it was chance, the site is like that just now, or that cookie is everybody's.
            let again = self.visitors.ask(&Request { url: place, ..Request::default() }).unwrap_or_default();
            let spoilt = spoilt && again.status == second.status && changed(&again);
            let control = self.probe.place(&self::canary()?, "");
            let control = self.visitors.ask(&Request { url: control, ..Request::default() }).unwrap_or_default();
            let others = control.cookies();
            let own =
                shared.filter(|(name, value)| others.iter().any(|(known, there)| known == name && there != value));
            let what = match own {
                Some((name, _)) => {
                    Some(format!("the cookie `{name}` that the first visitor got was set for the second"))
                }
                None if spoilt && control.status != 0 && !changed(&control) => {
                    let empty = if second.content.is_empty() && plain.length > 0 { " without content" } else { "" };
                    let status = second.status;
                    Some(format!(
                        "the {status}{empty} that it causes was sent to the second visitor, who asked plainly"
                    ))
                }
                None => None,
            };
            if let Some(what) = what {
                return Ok(finding(Verdict::Leak { what, hit: second.hit() }));
            }
        }
        let reflected = !first.places(&needle).is_empty();
        Ok(finding(if reflected { Verdict::Reflected } else { Verdict::Nothing { unanswered } }))
    }
}

impl Probe {
    /// The address with this in its query.
    fn place(&self, bust: &str, more: &str) -> String {
        let uri = self.url.to_string();
        let joint = if uri.contains('?') { '&' } else { '?' };
        let more = if more.is_empty() { String::new() } else { format!("&{more}") };
        format!("{uri}{joint}{}={bust}{more}", self.bust)
    }
}

/// What the first visitor sent, in words.
fn sent(row: &Row) -> &'static str {
    match row.way {
        Way::Field(..) | Way::Oversize => "what stood in the field",
        Way::Cookie(_) | Way::LearnedCookies => "what stood in the cookie",
        Way::Query(_) => "what stood in the query",
        Way::Content => "what stood in the content",
    }
}

/// A cookie that one plain visitor got and the next one at the same address got as well, although each visitor gets another.
fn passed_on([alone, first]: &[Answer; 2], second: &Answer) -> Option<Finding> {
    let (others, seconds) = (alone.cookies(), second.cookies());
    let own = first.cookies().into_iter().find(|cookie| {
        let made_for_one = others.iter().any(|(name, value)| *name == cookie.0 && *value != cookie.1);
        made_for_one && seconds.contains(cookie)
    })?;
    let what = format!("the cookie `{}` that the first visitor got was set for the second", own.0);
    let advice = "do not store responses with `Set-Cookie`, or take the field off before they are stored";
    Some(Finding { name: "Set-Cookie".to_owned(), verdict: Verdict::Leak { what, hit: second.hit() }, advice })
}

/// A line on standard error, where that is a terminal.
fn progress(text: &str) {
    let mut out = io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K{text}");
    }
}
