//! Content codings (RFC 9110 §8.4.1) as filters of content.

use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use brotli::enc::BrotliEncoderParams;
use bytes::Bytes;
use flate2::write::GzEncoder;

use crate::filter::{Broken, ContentFilter};

/// One of the encoders that may work at once.
pub struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// A turn, if fewer than so many are taken.
    pub fn take(all: &Arc<AtomicUsize>, most: usize) -> Option<Turn> {
        let turn = Turn(all.clone());
        (all.fetch_add(1, Relaxed) < most).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Brings content into a coding; takes memory only when the first chunk comes.
pub struct Encoder {
    coding: &'static str,
    flush: bool,
    once: bool,
    work: Option<Work>,
    _turn: Option<Turn>,
}

enum Work {
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::Encoder<'static, Vec<u8>>),
}

impl Work {
    /// What is made once for many may take a few MiB meanwhile; what each client has of its own must not.
    fn new(coding: &str, once: bool) -> std::io::Result<Work> {
        Ok(match coding {
            "br" => {
                // Never 5 with a window of 16: that takes tables of 32 MiB.
                let (quality, lgwin) = if once { (5, 18) } else { (3, 16) };
                let params = BrotliEncoderParams { quality, lgwin, ..Default::default() };
                Work::Br(Box::new(brotli::CompressorWriter::with_params(Vec::new(), 4096, &params)))
            }
            "gzip" => Work::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(6))),
            _ => {
                let mut encoder = zstd::Encoder::new(Vec::new(), if once { 3 } else { 1 })?;
                encoder.window_log(if once { 18 } else { 16 })?;
                Work::Zstd(encoder)
            }
        })
    }

    fn write(&mut self, chunk: &[u8], flush: bool) -> Result<Vec<u8>> {
        let writer: &mut dyn Write = match self {
            Work::Br(writer) => writer,
            Work::Gzip(writer) => writer,
            Work::Zstd(writer) => writer,
        };
        writer.write_all(chunk)?;
        if flush {
            writer.flush()?;
        }
        Ok(std::mem::take(match self {
            Work::Br(writer) => writer.get_mut(),
            Work::Gzip(writer) => writer.get_mut(),
            Work::Zstd(writer) => writer.get_mut(),
        }))
    }

    fn finish(self) -> Result<Vec<u8>> {
        match self {
            Work::Br(writer) => Ok(writer.into_inner()),
            Work::Gzip(writer) => writer.finish(),
            Work::Zstd(writer) => writer.finish(),
        }
    }
}

impl Encoder {
    /// An encoder for `br`, `gzip` or `zstd`. It flushes each chunk, so that streams flow, or takes its time;
    /// and takes more memory for what is made once for many.
    pub fn new(coding: &'static str, flush: bool, once: bool, turn: Option<Turn>) -> Self {
        Encoder { coding, flush, once, work: None, _turn: turn }
    }

    fn work(&mut self) -> Result<&mut Work> {
        match &mut self.work {
            Some(work) => Ok(work),
            none => Ok(none.insert(Work::new(self.coding, self.once)?)),
        }
    }
}

impl ContentFilter for Encoder {
    fn chunk(&mut self, chunk: Bytes) -> std::result::Result<Bytes, Broken> {
        let flush = self.flush;
        let out = self.work().and_then(|work| work.write(&chunk, flush));
        out.map(Bytes::from).map_err(|_| Broken)
    }

    fn finish(&mut self) -> std::result::Result<Bytes, Broken> {
        self.work().map_err(|_| Broken)?;
        let out = self.work.take().map(Work::finish);
        out.ok_or(Broken)?.map(Bytes::from).map_err(|_| Broken)
    }
}
