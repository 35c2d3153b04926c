//! The built-in plugins, one file each; their table.

pub mod basic_auth;
pub mod body_limit;
pub mod compress;
pub mod cors;
pub mod headers;
pub mod ip_filter;
pub mod rate_limit;
pub mod redirect_https;
pub mod request_id;
pub mod rewrite;
pub mod security_headers;

use crate::plugin::Entry;

/// All of them, by name.
pub const BUILT_IN: &[Entry] = &[
    Entry::of::<basic_auth::BasicAuth>(),
    Entry::of::<body_limit::BodyLimit>(),
    Entry::of::<compress::Compress>(),
    Entry::of::<cors::Cors>(),
    Entry::of::<headers::Headers>(),
    Entry::of::<ip_filter::IpFilter>(),
    Entry::of::<rate_limit::RateLimit>(),
    Entry::of::<redirect_https::RedirectHttps>(),
    Entry::of::<request_id::RequestId>(),
    Entry::of::<rewrite::Rewrite>(),
    Entry::of::<security_headers::SecurityHeaders>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_built_from_its_own_documentation_and_stands_where_it_is_written_to() {
        let names: Vec<_> = BUILT_IN.iter().map(|entry| entry.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        for name in names {
            let source =
                std::fs::read_to_string(format!("{}/src/plugins/{name}.rs", env!("CARGO_MANIFEST_DIR"))).unwrap();
            let doors = crate::testing::example(&source).doors();
            assert!(!doors.is_empty(), "{name}");
            // Tests at the end of a file call doors by the same names.
            let source = source.split("#[cfg(test)]").next().unwrap();
            for (hook, door) in [
                ("OnRequest", "request"),
                ("OnRequestHead", "request_head"),
                ("OnRequestBody", "request_body"),
                ("OnUpstreamRequest", "upstream_request"),
                ("OnUpstreamResponse", "upstream_response"),
                ("OnResponse", "response"),
                ("OnLog", "log"),
            ] {
                let written = source.contains(&format!("impl {hook} for"));
                assert!(written || !doors.contains(&door), "{name} stands at {door}");
                assert!(!written || source.contains(&format!(".{door}(")), "{name} never stands at {door}");
            }
            assert!(source.contains("cached route"), "{name} says what it does on a cached route");
        }
    }
}
