//! Bytes made into what targets take.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The lines of one field; a line that no field value can be is left out.
pub fn lines(name: &'static str, data: &[u8]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(32) {
        add(&mut fields, name, line);
    }
    fields
}

/// One more line of a field, if it can be one.
pub fn add(fields: &mut HeaderMap, name: &'static str, line: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(line) {
        fields.append(HeaderName::from_static(name), value);
    }
}

/// Fields from `name: value` lines; what is none is left out.
pub fn head(data: &[u8]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            fields.append(name, value);
        }
    }
    fields
}

/// The values of one field, trimmed.
pub fn values<'a>(fields: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    fields.get_all(name).iter().map(|value| value.as_bytes().trim_ascii()).collect()
}

/// All lines of a field as one list.
pub fn joined(fields: &HeaderMap, name: &str) -> Vec<u8> {
    fields.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b","[..])
}

/// The members of a list in which nothing is quoted.
pub fn plain_members(list: &[u8]) -> Vec<&[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty()).collect()
}
