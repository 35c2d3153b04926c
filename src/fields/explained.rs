//! `Headwall-Explain`: what was decided about a request, as a structured list (RFC 9651) of words with parameters.
//!
//! What others wrote (hosts, targets, field values) stands in quoted strings, cut, with every byte that is no
//! visible ASCII as `%XX`; so nobody breaks out of the list.

use std::fmt::Write;

use sfv::{BareItem, ListEntry, Parser};

/// The longest value of a parameter, as it is written.
const VALUE: usize = 512;
/// The longest field; what does not fit is left out, and `cut` says so.
const LONGEST: usize = 4096;
/// What is left out first: these tell what others wrote, however long, and nothing that was decided.
const OTHERS: [&str; 3] = ["key", "request", "origin"];

/// One member: a word with parameters.
pub struct Member(String);

impl Member {
    /// A member without parameters so far.
    pub fn new(word: &str) -> Self {
        Member(word.to_owned())
    }

    fn name(&self) -> &str {
        self.0.split(';').next().unwrap_or_default()
    }

    /// With a text.
    pub fn text(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let _ = write!(self.0, ";{name}=\"");
        let start = self.0.len();
        for byte in value.as_ref() {
            if self.0.len() - start >= VALUE {
                self.0.push_str("...");
                break;
            }
            match byte {
                b'"' | b'\\' => self.0.extend(['\\', char::from(*byte)]),
                b' '..=b'~' => self.0.push(char::from(*byte)),
                other => {
                    let _ = write!(self.0, "%{other:02X}");
                }
            }
        }
        self.0.push('"');
        self
    }

    /// With a text, if there is one.
    pub fn some(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if value.as_ref().is_empty() { self } else { self.text(name, value) }
    }

    /// With one of our own words.
    pub fn word(mut self, name: &str, value: &str) -> Self {
        let _ = write!(self.0, ";{name}={value}");
        self
    }

    /// With a number.
    pub fn number(mut self, name: &str, value: i64) -> Self {
        let _ = write!(self.0, ";{name}={value}");
        self
    }

    /// With a name alone, if that is so.
    pub fn flag(mut self, name: &str, so: bool) -> Self {
        if so {
            let _ = write!(self.0, ";{name}");
        }
        self
    }
}

/// The field value.
pub fn value(members: Vec<Member>) -> String {
    let mut room = LONGEST - ", cut".len();
    let mut fits = vec![false; members.len()];
    for others in [false, true] {
        for (fits, member) in fits.iter_mut().zip(&members) {
            let needed = member.0.len() + ", ".len();
            if OTHERS.contains(&member.name()) == others && needed <= room {
                (*fits, room) = (true, room - needed);
            }
        }
    }
    let cut = fits.contains(&false).then(|| Member::new("cut"));
    let kept = members.into_iter().zip(fits).filter_map(|(member, fits)| fits.then_some(member));
    kept.chain(cut).map(|Member(member)| member).collect::<Vec<_>>().join(", ")
}

/// A member that was read: its word and its parameters as text.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// The word.
    pub word: String,
    parameters: Vec<(String, String)>,
}

impl Told {
    /// A parameter; empty when it is not there.
    pub fn get(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// All parameters, in their order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether a parameter is there.
    pub fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|(known, _)| known == name)
    }
}

/// Reads what [`value`] has written; nothing, if it is something else.
pub fn read(value: &[u8]) -> Vec<Told> {
    let text = |item: &BareItem| match item {
        BareItem::String(text) | BareItem::Token(text) => text.clone(),
        BareItem::Integer(number) => number.to_string(),
        _ => String::new(),
    };
    let list = Parser::parse_list(value).unwrap_or_default();
    let told = list.iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(Told {
            word: text(&item.bare_item),
            parameters: item.params.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        }),
        ListEntry::InnerList(_) => None,
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read_whatever_it_is() {
        let evil = "x\", cache;hit, \\\r\nSet-Cookie: a=b \u{e9}";
        let key = Member::new("key").text("target", evil).word("scheme", "http").number("ttl", -3).flag("leak", true);
        let all = value(vec![key.flag("not", false), Member::new("cache").some("x", "").some("y", "z")]);
        assert!(all.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{all}");
        let told = read(all.as_bytes());
        assert_eq!(told.len(), 2, "{all}");
        assert_eq!(told[0].get("target"), "x\", cache;hit, \\%0D%0ASet-Cookie: a=b %C3%A9");
        assert_eq!((told[0].get("scheme"), told[0].get("ttl"), told[0].has("leak")), ("http", "-3", true));
        assert!(!told[0].has("not") && !told[1].has("x") && told[1].get("y") == "z");
    }

    #[test]
    fn it_has_an_end() {
        let members = (0..100).map(|_| Member::new("x").text("y", "z".repeat(10_000))).collect();
        let all = value(members);
        assert!(all.len() <= LONGEST && all.ends_with(", cut"), "{}", all.len());
        assert!(
            value(vec![Member::new("x").text("y", "\u{e9}".repeat(10_000))]).len() < VALUE + 20,
            "as it is written"
        );
        assert!(read(all.as_bytes()).iter().any(|told| told.get("y").ends_with("...")));
        assert!(read(b"\xff").is_empty() && read(b"(a b)").is_empty());
    }

    #[test]
    fn no_length_of_what_others_wrote_pushes_a_decision_out() {
        let long = |word: &str| {
            let texts = ["a", "b", "c", "d"].iter();
            texts.fold(Member::new(word), |member, name| member.text(name, "\u{e9}".repeat(10_000)))
        };
        let all = value(vec![
            Member::new("route").text("name", "r"),
            long("key"),
            long("request"),
            long("origin"),
            Member::new("decision").word("to", "store").text("why", "z".repeat(400)),
            Member::new("response").number("status", 200),
        ]);
        let words: Vec<_> = read(all.as_bytes()).into_iter().map(|told| told.word).collect();
        assert_eq!(words, ["route", "key", "decision", "response", "cut"]);
        assert!(all.len() <= LONGEST);
    }
}
