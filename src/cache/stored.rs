//! A stored response: its head parsed once, its content in shared pieces.
//!
//! A hit clones the head (field values are counted references) and hands out the
//! pieces: nothing is parsed, no content is copied. Freshening after a 304 makes a
//! new head beside the same content.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue};
use pingora::cache::key::HashBinary;
use pingora::http::ResponseHeader;

use super::coded::Coded;
use super::index::Listing;
use super::policy::Life;

/// Everything about a stored response but its content.
#[derive(Debug)]
pub struct Head {
    /// The whole key, compared on every lookup: a hash alone proves nothing.
    pub key: Box<[u8]>,
    /// The variant this is.
    pub variance: Option<HashBinary>,
    /// Status and fields.
    pub response: ResponseHeader,
    /// The fields that chose it.
    pub nominated: Arc<[HeaderName]>,
    /// Until when it may be used.
    pub life: Life,
    /// Orders variants of one key: what is older than its primary is no longer true.
    pub created: SystemTime,
    /// Where a purge finds it.
    pub listing: Arc<Listing>,
}

impl Head {
    /// The same stored response with another head and life, and content of this length.
    pub fn renewed(&self, response: &ResponseHeader, life: Life, length: u64, listing: Arc<Listing>) -> Arc<Head> {
        let mut response = compact(response);
        set_length(&mut response, length);
        Arc::new(Head {
            key: self.key.clone(),
            variance: self.variance,
            response,
            nominated: self.nominated.clone(),
            life,
            created: self.created,
            listing,
        })
    }
}

/// Content, in pieces that are shared and never copied.
#[derive(Debug, Default)]
pub struct Content {
    /// The pieces, none empty.
    pub pieces: Box<[Bytes]>,
    /// Their length in all.
    pub length: u64,
    /// The same in other codings, as far as somebody asked for them.
    pub coded: Arc<Coded>,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct Stored {
    /// All but the content.
    pub head: Arc<Head>,
    /// The content.
    pub content: Arc<Content>,
}

/// Pieces are merged up to this size when a response is complete, so that many small
/// chunks of a streaming app do not make every later hit slow.
const PIECE: usize = 64 << 10;

impl Content {
    /// Takes the pieces as they arrived; small neighbours become one.
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let mut length = 0;
        let mut merged: Vec<Bytes> = Vec::new();
        let mut small = BytesMut::new();
        for piece in pieces {
            length += piece.len() as u64;
            if piece.len() >= PIECE / 4 {
                if !small.is_empty() {
                    merged.push(Bytes::copy_from_slice(&small));
                    small.clear();
                }
                merged.push(piece);
            } else {
                small.extend_from_slice(&piece);
                if small.len() >= PIECE {
                    merged.push(Bytes::copy_from_slice(&small));
                    small.clear();
                }
            }
        }
        if !small.is_empty() {
            merged.push(Bytes::copy_from_slice(&small));
        }
        Content { pieces: merged.into(), length, coded: Arc::default() }
    }
}

/// A copy of a head whose clones are cheap, and which keeps no larger buffer alive: no table of the
/// names' spelling, and all values in one piece of memory of their own.
pub fn compact(response: &ResponseHeader) -> ResponseHeader {
    // Building from a status that the engine itself gave us cannot fail.
    let Ok(mut head) = ResponseHeader::build_no_case(response.status, Some(response.headers.len() + 1)) else {
        return response.clone();
    };
    let all: BytesMut = response.headers.values().flat_map(|value| value.as_bytes()).copied().collect();
    let mut rest = all.freeze();
    for (name, value) in &response.headers {
        // The bytes were a value before, so they are one.
        if let Ok(copy) = HeaderValue::from_maybe_shared(rest.split_to(value.len())) {
            let _ = head.append_header(name, copy);
        }
    }
    head
}

/// What the allocator and the counts of shared memory add to one head and its content.
const BLOCKS: usize = 320;

/// The engine's map keeps so much for each field that it has room for: name, value and links.
const FIELD: usize = 112;

/// What a head weighs in memory.
pub fn weight(response: &ResponseHeader) -> u64 {
    let fields = &response.headers;
    let text: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    (size_of::<Head>() + BLOCKS + fields.capacity() * FIELD + text) as u64
}

/// Says how long the content is, now that it is known.
pub fn set_length(response: &mut ResponseHeader, length: u64) {
    response.remove_header(&TRANSFER_ENCODING);
    if !matches!(response.status.as_u16(), 204 | 304) {
        let _ = response.insert_header(CONTENT_LENGTH, length);
    }
}

impl Stored {
    /// What it weighs in memory.
    pub fn weight(&self) -> u64 {
        self.content.length
            + self.content.coded.weight()
            + self.content.pieces.len() as u64 * 48
            + weight(&self.head.response)
            + self.head.listing.weight()
            + self.head.key.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_become_one_and_large_ones_are_not_copied() {
        let large = Bytes::from(vec![1; PIECE]);
        let pieces = [Bytes::from_static(b"a"), Bytes::from_static(b"b"), large.clone(), Bytes::from_static(b"c")];
        let content = Content::new(pieces);
        assert_eq!(content.length, PIECE as u64 + 3);
        assert_eq!(content.pieces.len(), 3);
        assert_eq!(content.pieces[0], "ab");
        assert_eq!(content.pieces[1].as_ptr(), large.as_ptr());
        assert_eq!(Content::new([]).pieces.len(), 0);
    }
}
