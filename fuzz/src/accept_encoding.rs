//! `Accept-Encoding`: nobody gets a coding that was not asked for, and the folded form says the same.

use headwall::fields::accept_encoding::{CODINGS, choose, fold};
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use super::input::{joined, lines, plain_members};

/// The lines of the field.
pub fn run(data: &[u8]) {
    let fields = lines("accept-encoding", data);
    let list = joined(&fields, "accept-encoding");
    let choice = choose(&fields, &CODINGS);
    if let Some(coding) = choice.coding {
        assert!(CODINGS.contains(&coding));
        let lower = list.to_ascii_lowercase();
        let asked = |word: &[u8]| lower.windows(word.len()).any(|part| part == word);
        assert!(asked(coding.as_bytes()) || asked(b"*"), "{coding} was not asked for by {list:?}");
    }
    let Some(folded) = fold(&fields) else {
        assert!(fields.is_empty() && choice.coding.is_none() && !choice.not_as_it_is);
        return;
    };
    let value = folded.value();
    let again = HeaderMap::from_iter([(ACCEPT_ENCODING, value.clone())]);
    assert_eq!(fold(&again), Some(folded), "{list:?} is {value:?}");
    let takes = |coding: &str| value.to_str().unwrap().split(", ").any(|taken| taken == coding);
    for ours in CODINGS {
        // With one coding of ours, it is chosen only where it is taken at all.
        assert!(choose(&fields, &[ours]).coding.is_none() || takes(ours), "{ours} of {list:?}");
        assert!(choose(&HeaderMap::new(), &[ours]).coding.is_none());
    }
    // Case does not count.
    let capitals = lines("accept-encoding", &data.to_ascii_uppercase());
    assert_eq!(fold(&capitals), Some(folded), "{list:?} in capitals");
    // Names alone, without weights: all that are there are taken.
    if !list.iter().any(|byte| b";\"".contains(byte)) {
        let members = plain_members(&list);
        for coding in ["br", "gzip", "zstd", "deflate"] {
            let named = members.iter().any(|member| member.eq_ignore_ascii_case(coding.as_bytes()) || *member == b"*");
            let alias = coding == "gzip" && members.iter().any(|member| member.eq_ignore_ascii_case(b"x-gzip"));
            assert_eq!(takes(coding), named || alias, "{coding} of {list:?}");
        }
    }
}
