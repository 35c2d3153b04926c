//! What answers without an upstream: the contract between the proxy and its handlers.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};

use crate::cache::ledger::Reservation;
use crate::exchange::Exchange;

/// A whole response that we made.
#[derive(Debug)]
pub struct Reply {
    /// Status and fields, `Content-Length` among them.
    pub head: ResponseHeader,
    /// The content.
    pub content: Bytes,
}

impl Reply {
    /// A response with this content.
    pub fn new(status: u16, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let mut reply = Reply::bare(status);
        reply.content = content;
        let length = reply.content.len();
        if !matches!(status, 204 | 304) {
            reply.set(CONTENT_LENGTH, HeaderValue::from(length));
        }
        reply
    }

    /// A response whose fields are all still to be set; for those who know their length better.
    pub fn bare(status: u16) -> Self {
        // Every status we use is a constant between 200 and 599, or was checked when the
        // configuration was loaded.
        let head = ResponseHeader::build_no_case(status, Some(8))
            .or_else(|_| ResponseHeader::build_no_case(500, Some(8)))
            .unwrap_or_else(|_| unreachable!("500 is a status"));
        Reply { head, content: Bytes::new() }
    }

    /// A short plain text.
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.push('\n');
        let mut reply = Reply::new(status, text);
        reply.set(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        reply
    }

    /// Sets a field.
    pub fn set(&mut self, name: HeaderName, value: HeaderValue) {
        let _ = self.head.insert_header(name, value);
    }

    /// The same with a field set.
    pub fn with(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.set(name, value.into());
        self
    }
}

/// Why content could not be read whole.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread {
    /// There is more than was asked for.
    TooLong,
    /// The client broke off.
    Broken,
    /// The client was too slow.
    TooSlow,
    /// There is no room for it just now.
    NoRoom,
    /// A plugin refused it, with this status.
    Refused(u16),
}

/// Where content comes from; implemented by the proxy.
#[async_trait]
pub trait Source: Send {
    /// The next chunk as the plugins left it, `None` at the end.
    async fn chunk(&mut self, exchange: &mut Exchange) -> Result<Option<Bytes>, Unread>;

    /// Asks a client that waits for `100 Continue` to go on.
    async fn continue_100(&mut self);
}

/// The content of a request.
pub struct Content<'a> {
    source: &'a mut dyn Source,
    /// `Content-Length`, where it was sent.
    pub announced: Option<u64>,
}

impl<'a> Content<'a> {
    /// Content from this source.
    pub fn new(source: &'a mut dyn Source, announced: Option<u64>) -> Self {
        Content { source, announced }
    }

    /// The next chunk, `None` at the end.
    pub async fn chunk(&mut self, exchange: &mut Exchange) -> Result<Option<Bytes>, Unread> {
        self.source.chunk(exchange).await
    }

    /// Asks a client that waits for `100 Continue` to go on. Harmless for one that does not.
    pub async fn continue_100(&mut self) {
        self.source.continue_100().await;
    }

    /// All of it, if it is not longer than `limit`. The bytes are the caller's own.
    pub async fn collect(&mut self, limit: u64, exchange: &mut Exchange) -> Result<Bytes, Unread> {
        self.gather(limit, |_| true, exchange).await
    }

    /// The same, with room set aside for what has arrived.
    pub async fn collect_in(
        &mut self,
        room: &mut Reservation,
        limit: u64,
        exchange: &mut Exchange,
    ) -> Result<Bytes, Unread> {
        self.gather(limit, |bytes| room.cover(bytes), exchange).await
    }

    async fn gather(
        &mut self,
        limit: u64,
        mut fits: impl FnMut(u64) -> bool,
        exchange: &mut Exchange,
    ) -> Result<Bytes, Unread> {
        if self.announced.is_some_and(|length| length > limit) {
            return Err(Unread::TooLong);
        }
        // Room grows with what arrives, not with what is promised.
        let mut all = Vec::with_capacity(self.announced.unwrap_or(0).min(64 << 10) as usize);
        if !fits(all.capacity() as u64) {
            return Err(Unread::NoRoom);
        }
        self.continue_100().await;
        while let Some(chunk) = self.chunk(exchange).await? {
            if all.len() as u64 + chunk.len() as u64 > limit {
                return Err(Unread::TooLong);
            }
            if all.len() + chunk.len() > all.capacity() {
                // What does not fit doubles it.
                let most = usize::try_from(limit).unwrap_or(usize::MAX);
                let more = (all.capacity() * 2).min(most).max(all.len() + chunk.len());
                if !fits(more as u64) {
                    return Err(Unread::NoRoom);
                }
                all.reserve_exact(more - all.len());
            }
            all.extend_from_slice(&chunk);
        }
        Ok(Bytes::copy_from_slice(&all))
    }
}

/// Answers requests of the routes that lead to it.
#[async_trait]
pub trait Handler: Send + Sync {
    /// The answer.
    async fn answer(&self, request: &RequestHeader, content: &mut Content<'_>, exchange: &mut Exchange) -> Reply;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    struct Chunks(Vec<&'static str>);

    #[async_trait]
    impl Source for Chunks {
        async fn chunk(&mut self, _: &mut Exchange) -> Result<Option<Bytes>, Unread> {
            if self.0.is_empty() {
                return Ok(None);
            }
            match self.0.remove(0) {
                "!" => Err(Unread::Broken),
                chunk => Ok(Some(chunk.into())),
            }
        }
        async fn continue_100(&mut self) {}
    }

    #[tokio::test]
    async fn content_is_read_whole_or_not_at_all() {
        let read = async |chunks: &[&'static str], announced, limit| {
            let mut exchange = Exchange::new(Clock::system().now(), [127, 0, 0, 1].into());
            Content::new(&mut Chunks(chunks.to_vec()), announced).collect(limit, &mut exchange).await
        };
        assert_eq!(read(&["ab", "c"], None, 3).await, Ok(Bytes::from("abc")));
        assert_eq!(read(&[], Some(0), 3).await, Ok(Bytes::new()));
        assert_eq!(read(&["ab", "cd"], None, 3).await, Err(Unread::TooLong));
        assert_eq!(read(&["ab"], Some(4), 3).await, Err(Unread::TooLong));
        assert_eq!(read(&["ab", "!"], Some(3), 3).await, Err(Unread::Broken));
    }
}
