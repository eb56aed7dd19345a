//! Opens a file as a stream of decompressed bytes: plain, gzip (any number of members), zstd (frames), xz, bzip2
//! (streams).
//!
//! Memory: 64 KB of input, 64 KB of output and the format's window, which `window_bytes` bounds for zstd and xz
//! (gzip's is 32 KB, bzip2's 4 MB).

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use flate2::bufread::GzDecoder;
use liblzma::stream::{CONCATENATED, Stream as LzmaStream};

use super::disk::{Disk, PlainBytes};
use super::window::Bytes;
use super::{Compression, ReadOptions};
use crate::error::{Error, Result};

const INPUT: usize = 64 << 10;
const OUTPUT: usize = 64 << 10;

/// The decompressed stream of `disk`, starting at its byte `offset`.
pub(super) fn open(
    disk: &Arc<Disk>,
    compression: Compression,
    options: &ReadOptions,
    offset: u64,
) -> Result<Box<dyn Bytes>> {
    let input = BufReader::with_capacity(
        match compression {
            Compression::None => 0,
            _ => INPUT,
        },
        PlainBytes(Arc::clone(disk)),
    );
    let (format, decoder): (&str, Box<dyn Read + Send>) = match compression {
        Compression::None => {
            if offset > 0 {
                disk.seek(offset)?;
            }
            return Ok(Box::new(input.into_inner()));
        }
        Compression::Gz => ("gzip", Box::new(Members(Some(GzDecoder::new(input))))),
        Compression::Zst => ("zstd", Box::new(zstd_decoder(input, disk, options)?)),
        Compression::Xz => ("xz", Box::new(xz_decoder(input, disk, options)?)),
        Compression::Bz2 => ("bzip2", Box::new(bzip2::bufread::MultiBzDecoder::new(input))),
    };
    if offset > 0 && disk.is_stdin() {
        disk.seek(offset)?;
    }
    let mut bytes = DecompressedBytes {
        disk: Arc::clone(disk),
        format,
        decoder,
        window_bytes: options.window_bytes,
        skip_broken: options.skip_broken,
        output: vec![0; OUTPUT].into_boxed_slice(),
        start: 0,
        end: 0,
        ended: false,
    };
    bytes.skip(offset)?;
    Ok(Box::new(bytes))
}

fn zstd_decoder(
    input: BufReader<PlainBytes>,
    disk: &Disk,
    options: &ReadOptions,
) -> Result<zstd::stream::read::Decoder<'static, BufReader<PlainBytes>>> {
    let log = options.window_bytes.max(1 << 20).ilog2().min(31);
    let build = || {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
        decoder.window_log_max(log)?;
        Ok(decoder)
    };
    build().map_err(|error| Error::io(&disk.path, error))
}

fn xz_decoder(
    input: BufReader<PlainBytes>,
    disk: &Disk,
    options: &ReadOptions,
) -> Result<liblzma::bufread::XzDecoder<BufReader<PlainBytes>>> {
    // The limit is on all of the decoder's memory, of which a few hundred KB are not the window.
    let limit = options.window_bytes.max(1 << 20) + (1 << 20);
    let stream = LzmaStream::new_stream_decoder(limit, CONCATENATED)
        .map_err(|error| Error::io(&disk.path, error.into()))?;
    Ok(liblzma::bufread::XzDecoder::new_stream(input, stream))
}

/// gzip members one after another, as written by `cat a.gz b.gz` or bgzip. Zeros after a member are padding.
/// Not flate2's own multi-member decoder, because that fails on padding as a broken header.
struct Members<R: BufRead>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            let mut input = self.0.take().expect("matched above").into_inner();
            if at_next_member(&mut input)? {
                self.0 = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// The first byte of every member.
const GZIP: u8 = 0x1F;
const FOLLOWED: &str = "other data follows its end";

fn at_next_member(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(false);
        }
        match bytes.iter().position(|&byte| byte != 0) {
            Some(padding) if bytes[padding] != GZIP => return Err(io::Error::other(FOLLOWED)),
            Some(padding) => {
                input.consume(padding);
                return Ok(true);
            }
            None => {
                let padding = bytes.len();
                input.consume(padding);
            }
        }
    }
}

struct DecompressedBytes {
    disk: Arc<Disk>,
    format: &'static str,
    decoder: Box<dyn Read + Send>,
    window_bytes: u64,
    skip_broken: bool,
    /// The decoder always writes here, never into the caller's buffer: when it finds damage, it discards what it has
    /// written in that call, so how much text precedes the damage would depend on the caller's block size.
    output: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
}

impl DecompressedBytes {
    fn refill(&mut self) -> Result<()> {
        self.start = 0;
        self.end = 0;
        match self.decoder.read(&mut self.output) {
            Ok(read) => self.end = read,
            Err(error) => {
                let error = self.explain(error)?;
                self.disk.damaged(self.skip_broken, error)?;
            }
        }
        self.ended = self.end == 0;
        match self.ended && self.disk.broken.get().is_none() {
            true => self.disk.check_end(),
            false => self.disk.check_unchanged(),
        }
    }

    /// Turns a decoder's failure into an error. The cause may not be the archive at all.
    fn explain(&self, error: io::Error) -> Result<Error> {
        let path = self.disk.path.clone();
        if self.disk.failed() {
            return Err(Error::Io { path, source: error });
        }
        self.disk.check_unchanged()?;
        let reason = error.to_string();
        if reason.contains("too much memory") || reason.contains("memory limit") {
            return Err(Error::Window { path, have: self.window_bytes });
        }
        let format = self.format;
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof if self.disk.planned() == Some(0) => {
                format!("is empty, so it is not a {format} file")
            }
            io::ErrorKind::UnexpectedEof => {
                format!("ends in the middle of its {format} stream (an unfinished download or copy?)")
            }
            _ if reason == FOLLOWED => {
                "is a valid gzip file, but other data follows its end (a second file?)".into()
            }
            _ => format!("is not a valid {format} file ({reason})"),
        };
        Ok(Error::Broken { path, line: None, what })
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        while bytes > 0 && !self.ended {
            self.refill()?;
            self.start = (self.end as u64).min(bytes) as usize;
            bytes -= self.start as u64;
        }
        Ok(())
    }
}

impl Bytes for DecompressedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.start == self.end && !self.ended {
            self.refill()?;
        }
        let read = buffer.len().min(self.end - self.start);
        buffer[..read].copy_from_slice(&self.output[self.start..self.start + read]);
        self.start += read;
        Ok(read)
    }
}
