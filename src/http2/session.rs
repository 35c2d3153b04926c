//! What the engine asks a stream for; the answers are in [`super::stream`].

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use h2::Reason;
use http::HeaderMap;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::body_buffer::FixedBuffer;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{ErrorType, Result};

use super::stream::{Stream, down};

/// Content up to this is kept, to be sent a second time when a server fails.
const KEPT: usize = 64 << 10;

/// Messages beside the content; HTTP has none.
type Messages = Box<dyn futures_core::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

#[async_trait]
impl Session for Stream {
    fn req_header(&self) -> &RequestHeader {
        &self.request
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.request
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_content(cx)).await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        let drain = self.drain;
        let all = async {
            while self.read_body_bytes().await?.is_some() {}
            Ok(())
        };
        match drain {
            Some(limit) => tokio::time::timeout(limit, all)
                .await
                .unwrap_or_else(|_| down(ErrorType::ReadTimedout, "the content did not end")),
            None => all.await,
        }
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.send_head(head, end)
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        self.send_head(Box::new(head.clone()), end)
    }

    async fn write_body(&mut self, mut data: Bytes, end: bool) -> Result<()> {
        poll_fn(|cx| self.poll_send(cx, &mut data, end)).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.send_trailers(trailers)
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.tasks.extend(tasks);
        poll_fn(|cx| self.poll_tasks(cx)).await
    }

    fn proxy_tasks_enabled(&self) -> bool {
        self.queues
    }

    fn set_proxy_tasks_enabled(&mut self, enabled: bool) {
        self.queues = enabled;
    }

    fn send_proxy_task(&mut self, task: HttpTask) {
        self.tasks.push_back(task);
    }

    fn has_pending_proxy_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    async fn write_proxy_tasks(&mut self) -> Result<bool> {
        poll_fn(|cx| self.poll_tasks(cx)).await
    }

    // How long a client may take is for the stream's own deadlines to say.
    fn set_read_timeout(&mut self, _: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_write_timeout(&mut self, _: Option<Duration>) {}

    fn get_write_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_total_drain_timeout(&mut self, limit: Option<Duration>) {
        self.drain = limit;
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.drain
    }

    fn request_summary(&self) -> String {
        format!("{} {}", self.request.method, String::from_utf8_lossy(self.request.raw_path()))
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.written.as_deref()
    }

    async fn shutdown(&mut self, _: u32, _: &str) {
        self.reset(Reason::INTERNAL_ERROR);
    }

    fn is_body_done(&mut self) -> bool {
        self.read || self.is_body_empty() || self.content.is_end_stream()
    }

    async fn finish(&mut self) -> Result<()> {
        self.end()
    }

    fn is_body_empty(&mut self) -> bool {
        self.received == 0 && (self.read || self.content.is_end_stream())
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_done() {
            return Err(poll_fn(|cx| self.poll_over(cx)).await);
        }
        self.read_body_bytes().await
    }

    fn body_bytes_sent(&self) -> usize {
        self.sent
    }

    fn body_bytes_read(&self) -> usize {
        self.received
    }

    fn digest(&self) -> Option<&Digest> {
        Some(&self.digest)
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        Arc::get_mut(&mut self.digest)
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.digest.socket_digest.as_ref()?.peer_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.digest.socket_digest.as_ref()?.local_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.as_http1.clone()
    }

    fn enable_retry_buffering(&mut self) {
        self.kept.get_or_insert_with(|| FixedBuffer::new(KEPT));
    }

    fn retry_buffer_truncated(&self) -> bool {
        self.kept.as_ref().is_some_and(FixedBuffer::is_truncated)
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        self.kept.as_ref().filter(|kept| !kept.is_truncated())?.get_buffer()
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _: Messages) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
