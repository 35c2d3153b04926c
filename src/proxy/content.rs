//! Content on its way in and out: where handlers read it, and where filters change it.

use std::any::Any;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;
use pingora::modules::http::{HttpModule, HttpModuleBuilder, Module};
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType};

use crate::catch::{Panicked, catch};
use crate::connection::Phase;
use crate::exchange::{Broken, ContentFilter, Exchange};
use crate::handler::{Source, Unread};
use crate::http2;
use crate::plugin::Chain;

/// The content of a request, for a handler, as the plugins leave it.
pub struct FromClient<'a> {
    /// Where it comes from.
    pub session: &'a mut ServerSession,
    /// The plugins of the route.
    pub chain: Option<&'a Chain>,
}

#[async_trait]
impl Source for FromClient<'_> {
    async fn chunk(&mut self, exchange: &mut Exchange) -> Result<Option<Bytes>, Unread> {
        let read = self.session.read_request_body().await;
        let connection = http2::connection(self.session);
        let mut chunk = read.map_err(|_| {
            // Nobody knows where the next request would begin.
            self.session.set_keepalive(None);
            match connection.as_ref().and_then(|connection| connection.expired()) {
                Some(Phase::Content) => Unread::TooSlow,
                _ => Unread::Broken,
            }
        })?;
        if let (Some(connection), true) = (connection, self.session.is_body_done()) {
            connection.content_over();
        }
        exchange.taken += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if let Some(chain) = self.chain {
            let end = chunk.is_none();
            chain.request_body(&mut chunk, end, exchange).map_err(|status| {
                self.session.set_keepalive(None);
                Unread::Refused(status)
            })?;
        }
        Ok(chunk)
    }

    async fn continue_100(&mut self) {
        let session = &mut self.session;
        let waits = session.req_header().headers.get(http::header::EXPECT);
        if waits.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) && !session.is_body_done()
        {
            let _ = session.write_continue_response().await;
            if let Some(connection) = http2::connection(session) {
                connection.content_welcome();
            }
        }
    }
}

/// Runs the content filters of one exchange, whichever way its response takes.
///
/// The engine tells its modules of the end on every path; its body hook does not.
#[derive(Default)]
pub struct Filters {
    list: Vec<Box<dyn ContentFilter>>,
    finished: bool,
    /// One of them gave up in this exchange.
    pub failed: bool,
}

/// Content is filtered in parts of this size where it is whole, with room for others to run between two.
const PART: usize = 64 << 10;

/// Sends whole content through filters; `None` when one of them gives up.
pub async fn through(filters: Vec<Box<dyn ContentFilter>>, mut content: Bytes) -> Option<Bytes> {
    let mut all = Filters::default();
    all.set(filters);
    let mut out = BytesMut::new();
    while !content.is_empty() {
        let part = content.split_to(content.len().min(PART));
        out.extend_from_slice(&catch(|| all.chunk(part)).ok()?.ok()?);
        tokio::task::yield_now().await;
    }
    out.extend_from_slice(&catch(|| all.finish()).ok()?.ok()?);
    Some(out.freeze())
}

impl Filters {
    /// Puts filters to work.
    pub fn set(&mut self, list: Vec<Box<dyn ContentFilter>>) {
        self.list = list;
        self.finished = false;
    }

    fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken> {
        let through = |chunk: Bytes, filter: &mut Box<dyn ContentFilter>| match chunk.is_empty() {
            true => Ok(chunk),
            false => filter.chunk(chunk),
        };
        self.list.iter_mut().try_fold(chunk, through)
    }

    /// What each filter still holds, sent through those behind it.
    fn finish(&mut self) -> Result<Bytes, Broken> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(Bytes::new());
        }
        let mut rest = Bytes::new();
        for filter in &mut self.list {
            let mut all = BytesMut::new();
            if !rest.is_empty() {
                all.extend_from_slice(&filter.chunk(rest)?);
            }
            all.extend_from_slice(&filter.finish()?);
            rest = all.freeze();
        }
        Ok(rest)
    }

    /// Content that a filter gives up, or panics over, is cut: it must not look whole.
    fn whole<T>(&mut self, filtered: Result<Result<T, Broken>, Panicked>) -> pingora::Result<T> {
        self.failed |= !matches!(filtered, Ok(Ok(_)));
        match filtered {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(Broken)) => Error::e_explain(ErrorType::InternalError, "a content filter gave up"),
            Err(Panicked) => Error::e_explain(ErrorType::InternalError, "a content filter panicked"),
        }
    }
}

#[async_trait]
impl HttpModule for Filters {
    async fn response_header_filter(&mut self, _: &mut ResponseHeader, _: bool) -> pingora::Result<()> {
        Ok(())
    }

    fn response_body_filter(&mut self, body: &mut Option<Bytes>, end: bool) -> pingora::Result<()> {
        if self.list.is_empty() {
            return Ok(());
        }
        let chunk = body.take();
        let filtered = catch(|| {
            let mut out = chunk.map_or(Ok(Bytes::new()), |chunk| self.chunk(chunk))?;
            if end {
                let rest = self.finish()?;
                out = if out.is_empty() { rest } else { [out, rest].concat().into() };
            }
            Ok(out)
        });
        *body = Some(self.whole(filtered)?);
        Ok(())
    }

    fn response_done_filter(&mut self) -> pingora::Result<Option<Bytes>> {
        if self.list.is_empty() {
            return Ok(None);
        }
        let filtered = catch(|| self.finish());
        let rest = self.whole(filtered)?;
        Ok(Some(rest).filter(|rest| !rest.is_empty()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Makes the module for each exchange.
pub struct FiltersBuilder;

impl HttpModuleBuilder for FiltersBuilder {
    fn init(&self) -> Module {
        Box::new(Filters::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds each byte back until the next one comes, in capitals.
    struct Late(Option<u8>);

    impl ContentFilter for Late {
        fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken> {
            let mut out = Vec::new();
            for byte in chunk {
                assert_ne!(byte, b'!', "on purpose");
                out.extend(self.0.replace(byte.to_ascii_uppercase()));
            }
            Ok(out.into())
        }
        fn finish(&mut self) -> Result<Bytes, Broken> {
            Ok(self.0.take().into_iter().collect())
        }
    }

    #[test]
    fn filters_are_finished_once_wherever_the_end_is_told() {
        for end_in_body in [true, false] {
            let mut filters = Filters::default();
            filters.set(vec![Box::new(Late(None)), Box::new(Late(None))]);
            let mut out = Vec::new();
            for (chunk, end) in [("abc", false), ("def", end_in_body)] {
                let mut body = Some(Bytes::from(chunk));
                filters.response_body_filter(&mut body, end).unwrap();
                out.extend_from_slice(&body.unwrap());
            }
            out.extend(filters.response_done_filter().unwrap().unwrap_or_default());
            assert_eq!(out, b"ABCDEF", "end told with the body: {end_in_body}");
        }
    }

    #[test]
    fn a_filter_that_panics_cuts_the_content() {
        let mut filters = Filters::default();
        filters.set(vec![Box::new(Late(None))]);
        assert!(filters.response_body_filter(&mut Some(Bytes::from("a!")), false).is_err());
    }
}
