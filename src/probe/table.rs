//! What is tried: one row for each field, cookie, parameter or content that a cache key may not know.

/// How a canary is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In this field, in this form; `{canary}` stands for the canary, `{port}` for a number of five digits and `{other}` for the
    /// scheme that the address does not have.
    Field(&'static str, &'static str),
    /// In a cookie of this name.
    Cookie(&'static str),
    /// In each cookie that the site has set, by its name.
    LearnedCookies,
    /// In a parameter of the query that the second visitor does not send.
    Query(&'static str),
    /// In form content of a GET.
    Content,
    /// A field of twelve KiB.
    Oversize,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// How.
    pub way: Way,
    /// What to do when it comes back.
    pub advice: &'static str,
}

const fn field(name: &'static str, form: &'static str, advice: &'static str) -> Row {
    Row { way: Way::Field(name, form), advice }
}

const HOST: &str = "let the proxy before the app drop the field or set it itself, or put it into the cache key";
const TARGET: &str =
    "let the proxy drop the field: it makes the app answer for another address than the one that is the key";
const CLIENT: &str = "let the proxy set the field itself, and keep what depends on the client out of responses for all";
const METHOD: &str = "let the proxy drop the field, or turn the override off in the app";
const VARY: &str = "answer with `Vary` for this field, add it to the cache key, or do not use it in what is cached";
const COOKIES: &str =
    "answer with `Cache-Control: private`, add the cookie to the cache key, or drop it before the app";
const QUERY: &str =
    "what the key ignores the app must not see: drop the parameter before the app (`key.query.drop` does both)";
const CONTENT: &str = "do not cache answers to a GET with content, or drop the content before the app";
const SIZE: &str = "do not store errors of 4xx for all, or refuse such heads before the app";

/// All rows, in the order in which they are tried.
pub const ROWS: &[Row] = &[
    field("X-Forwarded-Host", "{canary}.example", HOST),
    field("X-Host", "{canary}.example", HOST),
    field("X-Original-Host", "{canary}.example", HOST),
    field("X-HTTP-Host-Override", "{canary}.example", HOST),
    field("X-Forwarded-Server", "{canary}.example", HOST),
    field("Forwarded", "for=192.0.2.1;host={canary}.example;proto=https", HOST),
    field("X-Forwarded-Proto", "{canary}", HOST),
    field("X-Forwarded-Proto", "{other}", HOST),
    field("X-Forwarded-Scheme", "{canary}", HOST),
    field("X-Forwarded-Scheme", "{other}", HOST),
    field("X-Forwarded-Port", "{port}", HOST),
    field("X-Forwarded-Prefix", "/{canary}", TARGET),
    field("X-Original-URL", "/{canary}", TARGET),
    field("X-Rewrite-URL", "/{canary}", TARGET),
    field("X-Forwarded-For", "{canary}", CLIENT),
    field("X-Real-IP", "{canary}", CLIENT),
    field("X-Client-IP", "{canary}", CLIENT),
    field("True-Client-IP", "{canary}", CLIENT),
    field("X-HTTP-Method-Override", "{canary}", METHOD),
    field("X-HTTP-Method", "{canary}", METHOD),
    field("X-Method-Override", "{canary}", METHOD),
    field("X-HTTP-Method-Override", "HEAD", METHOD),
    field("Origin", "https://{canary}.example", VARY),
    field("Referer", "https://{canary}.example/", VARY),
    field("User-Agent", "{canary}", VARY),
    field("Accept", "text/{canary}, */*;q=0.1", VARY),
    field("Accept-Language", "x-{canary}", VARY),
    field("Authorization", "Bearer {canary}", COOKIES),
    Row { way: Way::Cookie("probe"), advice: COOKIES },
    Row { way: Way::Cookie("lang"), advice: COOKIES },
    Row { way: Way::Cookie("session"), advice: COOKIES },
    Row { way: Way::LearnedCookies, advice: COOKIES },
    Row { way: Way::Query("utm_source"), advice: QUERY },
    Row { way: Way::Query("utm_content"), advice: QUERY },
    Row { way: Way::Query("gclid"), advice: QUERY },
    Row { way: Way::Query("fbclid"), advice: QUERY },
    Row { way: Way::Content, advice: CONTENT },
    Row { way: Way::Oversize, advice: SIZE },
];

impl Row {
    /// What the report calls it.
    pub fn name(&self) -> String {
        match self.way {
            Way::Field(name, "{other}") => format!("{name}, the other scheme"),
            Way::Field(name, "HEAD") => format!("{name}: HEAD"),
            Way::Field(name, _) => name.to_owned(),
            Way::Cookie(name) => format!("Cookie {name}"),
            Way::LearnedCookies => "Cookies of the site".to_owned(),
            Way::Query(name) => format!("?{name}="),
            Way::Content => "GET with content".to_owned(),
            Way::Oversize => "a field of 12 KiB".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_the_page_knows_it() {
        let page = include_str!("../../docs/probe.md");
        let mut names: Vec<_> = ROWS.iter().map(Row::name).collect();
        for name in &names {
            let plain = name.split([',', ':']).next().unwrap();
            assert!(page.contains(&format!("`{plain}`")) || page.contains(plain), "docs/probe.md does not know {name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
