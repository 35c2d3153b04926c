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
    length: Option<u64>,
    work: Option<Work>,
    _turn: Option<Turn>,
}

enum Work {
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::Encoder<'static, Vec<u8>>),
}

impl Work {
    /// Windows are small where nobody knows how many such streams run for how long.
    fn new(coding: &str, length: Option<u64>) -> Result<Work> {
        let window = length.map_or(16, |length| length.max(2).ilog2() + 1).clamp(16, 18);
        Ok(match coding {
            "br" => {
                let params = BrotliEncoderParams { quality: 5, lgwin: window as i32, ..Default::default() };
                Work::Br(Box::new(brotli::CompressorWriter::with_params(Vec::new(), 4096, &params)))
            }
            "gzip" => Work::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(6))),
            _ => {
                // The tables of the higher levels are four times as large.
                let mut encoder = zstd::Encoder::new(Vec::new(), if length.is_some() { 3 } else { 1 })?;
                encoder.window_log(window)?;
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
    /// An encoder for `br`, `gzip` or `zstd`. Without a length each chunk is flushed, so that streams flow.
    pub fn new(coding: &'static str, length: Option<u64>, turn: Option<Turn>) -> Self {
        Encoder { coding, length, work: None, _turn: turn }
    }

    fn work(&mut self) -> Result<&mut Work> {
        match &mut self.work {
            Some(work) => Ok(work),
            none => Ok(none.insert(Work::new(self.coding, self.length)?)),
        }
    }
}

impl ContentFilter for Encoder {
    fn chunk(&mut self, chunk: Bytes) -> std::result::Result<Bytes, Broken> {
        let flush = self.length.is_none();
        let out = self.work().and_then(|work| work.write(&chunk, flush));
        out.map(Bytes::from).map_err(|_| Broken)
    }

    fn finish(&mut self) -> std::result::Result<Bytes, Broken> {
        self.work().map_err(|_| Broken)?;
        let out = self.work.take().map(Work::finish);
        out.ok_or(Broken)?.map(Bytes::from).map_err(|_| Broken)
    }
}
