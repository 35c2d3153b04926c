//! Content on its way in and out: where handlers read it, and where filters change it.

use std::any::Any;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use pingora::http::ResponseHeader;
use pingora::modules::http::{HttpModule, HttpModuleBuilder, Module};
use pingora::protocols::http::ServerSession;

use crate::exchange::ContentFilter;
use crate::handler::{Source, Unread};

/// The content of a request, for a handler.
pub struct FromClient<'a>(pub &'a mut ServerSession);

#[async_trait]
impl Source for FromClient<'_> {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Unread> {
        self.0.read_request_body().await.map_err(|_| {
            // Nobody knows where the next request would begin.
            self.0.set_keepalive(None);
            Unread::Broken
        })
    }

    async fn continue_100(&mut self) {
        let waits = self.0.req_header().headers.get(http::header::EXPECT);
        if waits.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) && !self.0.is_body_done() {
            let _ = self.0.write_continue_response().await;
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
}

impl Filters {
    /// Puts filters to work.
    pub fn set(&mut self, list: Vec<Box<dyn ContentFilter>>) {
        self.list = list;
        self.finished = false;
    }

    fn chunk(&mut self, chunk: Bytes) -> Bytes {
        self.list.iter_mut().fold(chunk, |chunk, filter| if chunk.is_empty() { chunk } else { filter.chunk(chunk) })
    }

    /// What each filter still holds, sent through those behind it.
    fn finish(&mut self) -> Bytes {
        if std::mem::replace(&mut self.finished, true) {
            return Bytes::new();
        }
        let mut rest = Bytes::new();
        for filter in &mut self.list {
            let mut all = BytesMut::new();
            if !rest.is_empty() {
                all.extend_from_slice(&filter.chunk(rest));
            }
            all.extend_from_slice(&filter.finish());
            rest = all.freeze();
        }
        rest
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
        let mut out = BytesMut::new();
        if let Some(chunk) = body.take() {
            out.extend_from_slice(&self.chunk(chunk));
        }
        if end {
            out.extend_from_slice(&self.finish());
        }
        *body = Some(out.freeze());
        Ok(())
    }

    fn response_done_filter(&mut self) -> pingora::Result<Option<Bytes>> {
        if self.list.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.finish()).filter(|rest| !rest.is_empty()))
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
        fn chunk(&mut self, chunk: Bytes) -> Bytes {
            let mut out = Vec::new();
            for byte in chunk {
                out.extend(self.0.replace(byte.to_ascii_uppercase()));
            }
            out.into()
        }
        fn finish(&mut self) -> Bytes {
            self.0.take().into_iter().collect()
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
}
